"""Names of the Ray actors of a service, and the description of the service that these actors share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

NAMESPACE: Final = "replay"
"""Ray namespace of the actors, in which other jobs find them by name."""


@dataclass(frozen=True)
class Service:
    """Replay servers under one name."""

    name: str
    """name of the service in the cluster"""
    shards: int
    """number of servers"""
    folder: Path
    """directory with the token; all nodes must see it"""
    data_dir: Path
    """directory with the servers' tables on each node; if other nodes do not share it, a lost node's rows are lost"""
    config: Path | None
    """TOML file of settings for the servers"""
    lost_after_s: float
    """seconds after which an unreachable shard is given up"""
    host: str | None
    """address to listen on; None: the node's address"""

    @property
    def access(self) -> Path:
        """The directory of the token's files."""
        return self.folder / "access"

    @property
    def map(self) -> str:
        """Name of the actor that keeps the shard map."""
        return map_name(self.name)

    def keeper(self, number: int) -> str:
        """Return the name of the actor that keeps the server with this number running."""
        return f"{self.name}/shard-{number}"


def map_name(service: str) -> str:
    """Return the name of the actor that keeps the shard map of a service."""
    return f"{service}/map"
