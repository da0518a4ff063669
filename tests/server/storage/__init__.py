"""Storage of tables, and recovery."""
