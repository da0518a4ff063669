"""Checkpoints: copies of tables in separate directories, taken while the server runs.

docs/checkpoints.md has the format.
"""
