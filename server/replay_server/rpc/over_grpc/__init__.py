"""The adapter for gRPC, and gRPC's health and reflection services."""
