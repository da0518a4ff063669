"""Handlers of all RPCs: check fields, call tables, build messages."""
