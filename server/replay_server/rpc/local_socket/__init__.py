"""The adapter for clients on this host: a unix-domain socket without HTTP/2."""
