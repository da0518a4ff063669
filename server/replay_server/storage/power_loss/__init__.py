"""Tables that survive a power loss: checksums, sync points, and recovery."""
