"""Connections: errors, restarts, time limits and interrupts."""
