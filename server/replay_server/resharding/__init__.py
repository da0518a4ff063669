"""Rewrites the parts of a checkpoint into parts for another number of servers: the command `replay-reshard`.

docs/checkpoints.md says what a resharded table keeps.
"""
