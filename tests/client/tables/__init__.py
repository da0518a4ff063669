"""Table handles: inserts, draws, writers and samplers."""
