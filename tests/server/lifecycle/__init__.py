"""Start, end, restart, and disks without room."""
