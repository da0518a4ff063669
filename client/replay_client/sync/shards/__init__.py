"""One logical table over several servers: its shards, and what reads and writes them."""
