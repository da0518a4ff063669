"""The service, spoken to over gRPC by generated messages alone."""
