"""The replay table of a run: its rows, the ways to it, and the pace that it sets."""
