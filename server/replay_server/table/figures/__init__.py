"""Statistics of a table, recorded incrementally to avoid scans."""
