"""Faults: killed servers, failing system calls, broken networks, hostile messages, long load."""
