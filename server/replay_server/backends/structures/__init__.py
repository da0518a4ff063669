"""Data structures of backends: trees of sums, extremes and ranks, and the ring of slots."""
