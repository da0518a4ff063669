"""The commands `replay-train` and `replay-actor`."""
