"""Requests and replies: `endpoints.py` lists every RPC, two transports call them."""
