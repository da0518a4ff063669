"""Checks and packs rows, and copies them from the files of a server on this host."""
