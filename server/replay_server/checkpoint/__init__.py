"""Checkpoints: copies of tables in separate directories, taken while the server runs.

docs/operations/checkpoints.md describes the format.
"""
