"""How messages reach a server: over gRPC, or over a socket on its host; retries and time limits."""
