"""Code shared by tests: server processes, a raw client, rows that can be checked for integrity."""
