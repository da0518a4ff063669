"""One table: live rows, draws, updates, statistics."""
