"""The process: settings, start, the gRPC server around the service, stop."""
