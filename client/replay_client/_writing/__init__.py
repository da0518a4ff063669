"""Sends rows to a table, either as streams of experience, which are delivered in blocks, or as single inserts."""
