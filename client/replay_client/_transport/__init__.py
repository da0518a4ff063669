"""Transports to a server: gRPC, a socket on its host, retries and time limits."""
