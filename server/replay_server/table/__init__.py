"""A single table: its live rows, draws, priority updates, rate limiter and statistics."""
