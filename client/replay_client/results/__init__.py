"""What a server tells about itself, its tables and its checkpoints."""
