"""The command `replay top`: a live view of a server's tables, in a terminal."""
