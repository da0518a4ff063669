"""One logical table over several servers, its shards."""
