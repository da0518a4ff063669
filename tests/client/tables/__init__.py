"""Handles of tables: inserts, draws, writers and samplers."""
