"""The server process: settings, startup, gRPC server, shutdown."""
