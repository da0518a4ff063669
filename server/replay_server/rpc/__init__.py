"""Requests and replies: `endpoints.py` lists every RPC, two adapters call them."""
