"""Tables that survive a loss of power: checksums, sync points, and recovery."""
