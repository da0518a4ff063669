"""The calls of clients and tables without I/O: what to send, and how to read the replies."""
