"""Checks whether a table can be distributed over several servers, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from replay_client.errors import InvalidArgumentError
from replay_client.results.description import FIFO, RANK, TableDescription

NOT_DIVIDED: Final[Mapping[str, str]] = {
    FIFO: "a queue has one order",
    RANK: 'the rank of a row depends on the rows of all servers; use one server or "sum_tree"',
}
"""Why tables with these backends cannot be on several servers."""


def check_backend(backend: str, what: str) -> None:
    """Check the backend of a table on several servers; ``what`` names the table and the servers in the error.

    Raises:
        InvalidArgumentError: it draws in an order that several servers do not have.
    """
    if backend in NOT_DIVIDED:
        expected = f"another one than {backend!r} for a table on several servers: {NOT_DIVIDED[backend]}"
        raise InvalidArgumentError.of_field("backend", expected, f"{backend!r} {what}")


def check_divisible(table: TableDescription, address: str) -> None:
    """Check that a table on one server can be extended by shards on other servers.

    Raises:
        InvalidArgumentError: its backend works on one server only, or its rate limiter was created for one server only.
    """
    check_backend(table.backend, f"of table {table.name!r} on {address}; drop it, or use other servers")
    if table.rate_limit is not None and not table.whole_capacity:
        raise InvalidArgumentError.of_field(
            "rate_limiter",
            "none in a table that gets shards on other servers, or one that was created on several, which divide it",
            f"that of table {table.name!r}, created on {address} alone; drop it, and create it again on all servers",
        )
