"""The HTTP port: a live page, metrics and probes for operators."""
