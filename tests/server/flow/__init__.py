"""Rate limiters, queues, calls that wait, and bounds."""
