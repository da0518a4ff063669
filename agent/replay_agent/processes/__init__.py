"""Processes that a run starts on this machine, and signals that stop it."""
