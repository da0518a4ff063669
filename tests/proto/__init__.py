"""The contract's schema and framing."""
