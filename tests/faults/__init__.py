"""Faults on purpose: killed servers and clients, broken networks, full disks, hostile bytes."""
