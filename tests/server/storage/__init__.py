"""What a table stores, and what it finds again."""
