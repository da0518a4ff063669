"""Clients of earlier versions talk to this server; `tests/server/storage/test_earlier_formats.py` has their files."""
