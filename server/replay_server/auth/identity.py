"""Identifies callers, so that clients with the same token, or on the same host, share budgets.

If the server requires tokens, a caller is identified by the name of its token, whatever its address. Otherwise, a
caller is a host: an IPv4 address, an IPv6 /64 network (the usual size for one customer), or this machine, for clients
that connect over loopback or the local socket. Processes on one machine cannot be distinguished reliably.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final
from urllib.parse import unquote

THIS_HOST: Final = "this host"
_NETWORK_BITS: Final = 64


def of_token(name: str) -> str:
    """Identity of the holders of a token."""
    return f"token {name}"


def of_peer(peer: str) -> str:
    """Identity of a peer with an address in gRPC's format.

    Examples are ``ipv4:10.0.0.7:52100``, ``ipv6:%5B2001:db8::1%5D:52100`` and ``unix:``.
    """
    kind, _, address = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return THIS_HOST
    return of_host(unquote(address).rpartition(":")[0].strip("[]"))


@lru_cache(maxsize=1024)
def of_host(address: str) -> str:
    """Identity of a host by its address, without a port; an empty address is this machine."""
    try:
        found = ip_address(address)
    except ValueError:
        return THIS_HOST if not address else f"host {address}"
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if found.is_loopback:
        return THIS_HOST
    if isinstance(found, IPv6Address):
        network = int(found) >> (128 - _NETWORK_BITS) << (128 - _NETWORK_BITS)
        return f"host {IPv6Address(network)}/{_NETWORK_BITS}"
    return f"host {found}"
