"""Access: tokens, TLS, and what is kept from whom."""
