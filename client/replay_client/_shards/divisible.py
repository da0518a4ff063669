"""Which tables can be on several servers."""

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


def check_kind(backend: str, parameters: Mapping[str, float], what: str, *, is_ragged: bool) -> None:
    """Check what a table on several servers draws; ``what`` names the table and the servers in the error.

    Args:
        backend: its backend.
        parameters: those of the backend.
        what: names the table and the servers in the error.
        is_ragged: see `Steps.is_ragged`.

    Raises:
        InvalidArgumentError: several servers cannot draw so.
    """
    if backend in NOT_DIVIDED:
        expected = f"another one than {backend!r} for a table on several servers: {NOT_DIVIDED[backend]}"
        raise InvalidArgumentError.of_field("backend", expected, f"{backend!r} {what}")
    if times := parameters.get("max_times_sampled"):
        expected = "none for a table on several servers: no sampler knows how many draws the rows of each have left"
        raise InvalidArgumentError.of_field("max_times_sampled", expected, f"{times:g} {what}")
    if is_ragged:
        raise InvalidArgumentError.of_field("steps.padded", "True for a table on several servers", f"False {what}")


def check_table(table: TableDescription, what: str) -> None:
    """Check what an existing table draws; see `check_kind`."""
    is_ragged = table.steps is not None and table.steps.is_ragged
    check_kind(table.backend, table.parameters, what, is_ragged=is_ragged)


def check_divisible(table: TableDescription, address: str) -> None:
    """Check that a table on one server can be extended by shards on other servers.

    Raises:
        InvalidArgumentError: its backend works on one server only, or its rate limiter was created for one server only.
    """
    check_table(table, f"of table {table.name!r} on {address}; drop it, or use other servers")
    if table.rate_limit is not None and not table.whole_capacity:
        raise InvalidArgumentError.of_field(
            "rate_limiter",
            "none in a table that gets shards on other servers, or one that was created on several, which divide it",
            f"that of table {table.name!r}, created on {address} alone; drop it, and create it again on all servers",
        )
