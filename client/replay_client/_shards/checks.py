"""Checks of shards, without I/O: shard maps that clash, and tables that cannot be on several servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from replay_proto.shard_maps import is_made_from

from replay_client.errors import InvalidArgumentError
from replay_client.results.description import FIFO, RANK, TableDescription
from replay_client.results.shards import ShardMap


def newest_map(maps: Iterable[tuple[str, ShardMap]]) -> ShardMap | None:
    """Return the newest map; None if there is none.

    Args:
        maps: each map with the server that has it.

    Raises:
        InvalidArgumentError: a server has a map that the newest one was not made from.
    """
    found = list(maps)
    if not found:
        return None
    newest = max(found, key=lambda each: each[1].version)
    for each in found:
        refuse_clash(newest, each)
    return newest[1]


def refuse_clash(one: tuple[str, ShardMap], other: tuple[str, ShardMap]) -> None:
    """Refuse two maps of which neither was made from the other.

    Two administrators who cannot reach the same servers can each change the map. The newer map then lacks a change.

    Raises:
        InvalidArgumentError: they are.
    """
    older, newer = sorted((one, other), key=lambda each: each[1].version)
    if not is_made_from(newer[1], older[1]):
        raise InvalidArgumentError.of_field(
            "address",
            "servers with one shard map; two people have changed it without reaching each other's servers: stop one of "
            "these servers, copy the other's shards.json into its --data-dir, and repeat the change that is lost",
            f"{one[0]} with {_shown(one[1])}, and {other[0]} with {_shown(other[1])}",
        )


def _shown(shards: ShardMap) -> str:
    servers = ", ".join(f"{shard.id} at {shard.address} ({shard.state})" for shard in shards.shards)
    return f"version {shards.version} of {servers}"


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
