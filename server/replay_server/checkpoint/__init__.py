"""Checkpoints: copies of tables in directories of their own, taken while service goes on.

docs/checkpoints.md has the format.
"""
