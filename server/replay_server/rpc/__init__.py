"""RPCs, listed in `endpoints.py`. Two transports serve them: gRPC and the local socket."""
