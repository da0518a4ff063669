"""Logical tables over several servers."""
