"""Handlers of all RPCs. They check fields, call tables and build replies."""
