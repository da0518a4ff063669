"""Checkpoints of several servers. Each server writes a part, and all parts have the same name and number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from replay_client._operations import server as operations
from replay_client._shards.map_clashes import newest_map
from replay_client._transport.call import Operation
from replay_client._transport.session import Session
from replay_client.errors import CheckpointNotFoundError, ServerUnavailableError
from replay_client.results.copies import Checkpoint, CheckpointTable
from replay_client.sync.shards.servers.asking import answers, ask_all

T = TypeVar("T")

_SERIES: Final = "checkpoint"


def write_parts(
    sessions: Mapping[int, Session],
    tables: Iterable[str],
    *,
    series: str | None,
    keep: int | None,
    timeout_s: float | None,
) -> Checkpoint:
    """Have all servers write their parts of a checkpoint, at almost the same time.

    Raises:
        ServerUnavailableError: a server is away. If it went away during the call, the others have written their parts.
        ReplayError: as for `ReplayClient.checkpoint`.
    """
    series = operations.checked_text("series", series or _SERIES)
    names = operations.checked_names("tables", tables)
    listed = _of_each(sessions, {shard_id: partial(_listed, session) for shard_id, session in sessions.items()})
    numbers = [_number(each.name) for parts in listed.values() for each in parts if _is_of(each.name, series)]
    number = max(numbers, default=0) + 1

    def write(shard_id: int, session: Session) -> Checkpoint:
        call = operations.checkpoint(
            names, series=series, keep=keep, timeout_s=timeout_s, number=number, shard_id=shard_id
        )
        return session.connection.run(call)

    return joined(
        _of_each(sessions, {shard_id: partial(write, shard_id, session) for shard_id, session in sessions.items()})
    )


def list_parts(sessions: Mapping[int, Session]) -> list[Checkpoint]:
    """List the checkpoints of all servers, damaged ones first, then oldest first.

    Parts of servers that are away are missing.
    """
    by_name: dict[str, dict[int, Checkpoint]] = {}
    for shard_id, (found, _) in ask_all(sessions, operations.list_checkpoints).items():
        for each in found:
            by_name.setdefault(each.name, {})[shard_id] = each
    return sorted(map(joined, by_name.values()), key=lambda each: (not each.damage, each.taken_s, each.name))


def verify_parts(
    sessions: Mapping[int, Session], name: str, *, timeout_s: float | None, is_partial: bool
) -> Checkpoint:
    """Have all servers verify their parts of a checkpoint.

    Raises:
        CheckpointNotFoundError: no server has a part, or a part is missing and ``is_partial`` is False.
        CheckpointDamagedError: a file is corrupt.
    """

    def verify() -> Operation[Checkpoint | None]:
        try:
            return (yield from operations.verify_checkpoint(name, timeout_s=timeout_s))
        except CheckpointNotFoundError:
            return None

    there = {shard_id: sessions[shard_id] for shard_id in ask_all(sessions, operations.list_checkpoints)}
    found = answers({shard_id: partial(session.connection.run, verify()) for shard_id, session in there.items()})
    parts = {shard_id: part for shard_id, part in found.items() if part is not None}
    if not parts:
        raise CheckpointNotFoundError(f"no server has a checkpoint {name!r}")
    whole = joined(parts)
    if whole.missing and not is_partial:
        shards = {} if whole.shards is None else {shard.id: shard.address for shard in whole.shards.shards}
        missing = ", ".join(f"{shard_id} at {shards[shard_id]}" for shard_id in whole.missing)
        raise CheckpointNotFoundError(f"checkpoint {name!r} lacks the parts of shards {missing}")
    return whole


def joined(parts: Mapping[int, Checkpoint]) -> Checkpoint:
    """Join the descriptions of a checkpoint's parts."""
    newest = newest_map((f"shard {shard_id}", part.shards) for shard_id, part in parts.items() if part.shards)
    tables: dict[str, CheckpointTable] = {}
    for part in parts.values():
        for name, table in part.tables.items():
            tables[name] = _added(tables[name], table) if name in tables else table
    first = next(iter(parts.values()))
    return replace(
        first,
        taken_s=min((part.taken_s for part in parts.values() if not part.damage), default=0.0),
        damage="; ".join(part.damage for part in parts.values() if part.damage),
        bytes=sum(part.bytes for part in parts.values()),
        tables=dict(sorted(tables.items())),
        shards=newest,
        parts=dict(parts),
    )


def _listed(session: Session) -> Sequence[Checkpoint]:
    found, _ = session.connection.run(operations.list_checkpoints())
    return found


def _of_each(sessions: Mapping[int, Session], calls: Mapping[int, partial[T]]) -> dict[int, T]:
    """Make a call to each server, and return the answers by shard.

    Raises:
        ServerUnavailableError: a server is away.
    """
    found = answers(calls)
    away = [
        f"shard {shard_id} at {session.options.address}"
        for shard_id, session in sessions.items()
        if shard_id not in found
    ]
    if away:
        raise ServerUnavailableError(f"a checkpoint needs all servers, but these are away: {', '.join(away)}")
    return found


def _added(one: CheckpointTable, other: CheckpointTable) -> CheckpointTable:
    return replace(
        one,
        size=one.size + other.size,
        inserted=one.inserted + other.inserted,
        left_out=one.left_out + other.left_out,
    )


def _is_of(name: str, series: str) -> bool:
    return name.rpartition("-")[0] == series


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])
