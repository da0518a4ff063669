"""What servers know of other shards."""
