"""The other servers of a service, to which the live page links."""

from __future__ import annotations

import socket
from typing import Any

import psutil
from replay_proto.merged_stats import shards_in_use
from replay_proto.v1 import replay_pb2


def place_of(shards: replay_pb2.ShardMap | None, port: int) -> dict[str, Any] | None:
    """Return which shard of a service this server is, and where the others are; None if there is only one server.

    Args:
        shards: the shard map of this server.
        port: this server's port for gRPC.
    """
    in_use = [] if shards is None else shards_in_use(shards)
    if len(in_use) < 2:
        return None
    here = [shard.id for shard in in_use if _is_here(shard.address, port)]
    own = here[0] if len(here) == 1 else None  # several: this host has several names for the same port
    return {
        "shard": own,
        "servers": len(in_use),
        "others": [{"shard": shard.id, "address": shard.address} for shard in in_use if shard.id != own],
    }


def _is_here(address: str, port: int) -> bool:
    """Whether an address in a shard map is that of this server, as far as its own names tell."""
    host, _, number = address.rpartition(":")
    return number == str(port) and host.strip("[]").lower() in _own_names()


def _own_names() -> set[str]:
    name = socket.gethostname().lower()
    addresses = {each.address for found in psutil.net_if_addrs().values() for each in found}
    return {"localhost", name, name.partition(".")[0], *addresses}
