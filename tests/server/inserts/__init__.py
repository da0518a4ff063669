"""Inserts and writers."""
