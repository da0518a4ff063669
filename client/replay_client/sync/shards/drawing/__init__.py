"""Samplers of tables on several servers."""
