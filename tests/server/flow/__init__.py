"""Rate limiters, queues, waiting calls and limits."""
