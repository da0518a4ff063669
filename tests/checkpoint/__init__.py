"""Checkpoints in process: what only shows when inserts come between two steps of a copy."""
