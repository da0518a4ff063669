"""The server: over gRPC by generated messages alone, and its parts in process."""
