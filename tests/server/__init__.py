"""The server, over gRPC with generated messages only, and its parts in process."""
