"""Checkpoints: copies of tables in separate directories, taken while the server runs.

docs/checkpoints.md describes the format.
"""
