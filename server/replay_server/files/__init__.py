"""Files and directories: durable writes, memory mapping, removal of leftovers, protection from other users."""
