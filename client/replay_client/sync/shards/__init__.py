"""Tables on several servers: their shards, samplers and writers."""
