"""Files and directories: durable, memory-mapped, cleaned up, and safe from other users."""
