"""Draws, reads and updates, over gRPC and over the local socket."""
