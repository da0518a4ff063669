"""Statistics, with an injected clock."""
