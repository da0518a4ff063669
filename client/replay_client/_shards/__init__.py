"""One logical table over several servers, its shards, without I/O."""
