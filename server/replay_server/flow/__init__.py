"""Admission of calls: waits, turns, budgets and limits."""
