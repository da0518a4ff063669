"""Files and directories: durable writes, memory mapping, removal of leftover folders, protection from other users."""
