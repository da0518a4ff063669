"""Checks whether a table can be distributed over several servers, without I/O."""

from __future__ import annotations

from replay_client.errors import InvalidArgumentError
from replay_client.results.description import FIFO, TableDescription


def check_not_queue(backend: str, what: str) -> None:
    """Check that a table on several servers is not a queue; ``what`` names the table and the servers in the error.

    Raises:
        InvalidArgumentError: the table is a queue.
    """
    if backend == FIFO:
        expected = f"another one than {FIFO!r} for a table on several servers: a queue has one order"
        raise InvalidArgumentError.of_field("backend", expected, f"{backend!r} {what}")


def check_divisible(table: TableDescription, address: str) -> None:
    """Check that a table on one server can be extended by shards on other servers.

    Raises:
        InvalidArgumentError: the table is a queue, or its rate limiter was created for one server only.
    """
    check_not_queue(table.backend, f"of table {table.name!r} on {address}; drop it, or use other servers")
    if table.rate_limit is not None and not table.whole_capacity:
        raise InvalidArgumentError.of_field(
            "rate_limiter",
            "none in a table that gets shards on other servers, or one that was created on several, which divide it",
            f"that of table {table.name!r}, created on {address} alone; drop it, and create it again on all servers",
        )
