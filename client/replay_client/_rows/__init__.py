"""Checks rows, packs them into messages, and copies them from the files of a server on the same host."""
