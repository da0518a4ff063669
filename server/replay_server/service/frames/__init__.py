"""Learners' calls in frames, beside gRPC: over a unix-domain socket on this host, over a TCP port from others.

`serving` is what both have in common, `connection` one connection, `unix_socket` and `tcp_port` who is let in where.
"""
