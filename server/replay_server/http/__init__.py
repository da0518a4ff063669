"""The HTTP port: metrics and probes for operators."""
