"""The tests: one folder per part, and shared code in `support`."""
