"""The servers of a service: the shard map, its changes, and calls to all of them."""
