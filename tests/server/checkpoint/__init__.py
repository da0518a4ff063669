"""Checkpoints in process, with inserts between the steps of a copy."""
