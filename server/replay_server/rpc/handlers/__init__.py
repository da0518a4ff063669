"""What each RPC does: checks fields, calls tables, builds messages."""
