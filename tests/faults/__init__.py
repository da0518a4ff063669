"""Injected faults: killed servers and clients, broken networks, full disks, hostile messages."""
