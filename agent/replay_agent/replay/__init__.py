"""The replay table of a run: rows, access and pacing."""
