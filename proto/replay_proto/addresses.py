"""Writes addresses as HOST:PORT."""

from __future__ import annotations


def host_and_port(host: str, port: int) -> str:
    """Join a host and a port; an IPv6 address gets brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
