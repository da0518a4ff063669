"""Tells whether a shard map was made from another one, so that nobody's change of it is lost silently.

Administrators who cannot reach the same servers can each change the map. The newer map then lacks the other's change,
and so its ancestors lack the id of the other map.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

MOST_ANCESTORS: Final = 256
"""A server or client that missed more changes than these refuses the newest map, too."""


class AnyShardMap(Protocol):
    """A shard map: the message, or the class of the client or the server."""

    @property
    def version(self) -> int:
        """Increases with each change."""
        ...

    @property
    def id(self) -> bytes:
        """Identifies this map; empty if an earlier version of the service made it."""
        ...

    @property
    def ancestors(self) -> Sequence[bytes]:
        """Ids of the maps that it was made from."""
        ...


def is_made_from(newer: AnyShardMap, older: AnyShardMap) -> bool:
    """Whether a map is another one, or was made from it. Older maps without an id count as its ancestors."""
    if newer.version == older.version:
        return newer == older
    return not older.id or older.id in newer.ancestors
