"""What stands between callers and tables: waits, turns, and bounds on what callers may ask for."""
