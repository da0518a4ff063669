"""Decides when calls may run: limits, budgets, and lines of waiting calls."""
