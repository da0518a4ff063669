"""Data structures that backends are built of: trees of sums, extremes and ranks; and the ring of slots."""
