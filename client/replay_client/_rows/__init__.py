"""Rows on their way: checked, packed, and copied out of a server's files on this host."""
