"""One shard of a distributed table, as a client has opened it."""

from __future__ import annotations

from dataclasses import dataclass

from replay_client._transport.server_link import ServerLink
from replay_client.results.description import TableDescription
from replay_client.sync.table import Table


@dataclass(frozen=True)
class Member:
    """See the module."""

    id: int
    """Id of the shard: the upper bits of the keys of its rows in the whole table."""
    link: ServerLink
    """The link to the shard's server."""
    table: Table
    """The shard's own table. Its keys do not contain the shard's id."""
    description: TableDescription
    """The description of the shard's table when it was opened."""
    is_active: bool
    """Whether the shard gets new rows."""

    def __str__(self) -> str:
        """Name the shard in messages."""
        return f"shard {self.id} at {self.link.options.address}"
