"""Startup, shutdown, restart and full disks."""
