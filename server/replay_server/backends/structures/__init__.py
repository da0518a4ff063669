"""Data structures of backends: trees of sums, extremes and ranks; the ring of slots."""
