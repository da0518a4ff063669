"""The tests: one folder per part, and what they share in `support`."""
