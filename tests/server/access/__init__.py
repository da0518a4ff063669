"""Access control: tokens, TLS and rights."""
