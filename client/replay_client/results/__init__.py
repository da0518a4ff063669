"""Descriptions and statistics of servers, tables and checkpoints."""
