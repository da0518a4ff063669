"""Figures, by a clock that is handed in."""
