"""Communication with a server: gRPC, a socket on the server's host, retries and time limits."""
