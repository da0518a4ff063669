"""Why there is nothing to draw from any shard of a table, in the words and fields of a single server."""

from __future__ import annotations

from collections.abc import Sequence

from replay_proto.v1 import replay_pb2
from replay_proto.waits import waited_text

from replay_client._transport.call import Call, Operation
from replay_client._transport.long_waits import ASK_S
from replay_client.errors import DeadlineExceededError, ReplayError, TableEmptyError
from replay_client.sync.shards.servers.members import Member


def nothing_to_draw(name: str, waited_s: float, wait_s: float, members: Sequence[Member]) -> ReplayError:
    """Return the error of a draw that found nothing, from a table without a rate limiter; see `too_small`."""
    message = f"table {name!r} has no rows to draw; insert some, or pass timeout_s to wait for some"
    return too_small(name, waited_s, wait_s, members) or _error(message, name, waited_s, wait_s, "rows", 0, 1)


def too_small(name: str, waited_s: float, wait_s: float, members: Sequence[Member]) -> ReplayError | None:
    """Return the error of a draw that found nothing, if that needs something else than rows, as a larger capacity.

    Args:
        name: the table.
        waited_s: for how long the draw has waited, in seconds.
        wait_s: for how long it was allowed to wait; 0 if not at all.
        members: the shards whose servers are there. They are asked.
    """
    refusal = _hopeless(members)
    if refusal is None:
        return None
    said = refusal.metadata
    return _error(refusal.message, name, waited_s, wait_s, said["waited_for"], int(said["have"]), int(said["needed"]))


def _error(
    message: str, name: str, waited_s: float, wait_s: float, waited_for: str, have: int, needed: int
) -> ReplayError:
    fields = {"table": name, "waited_for": waited_for, "have": str(have), "needed": str(needed)}
    if not wait_s:
        return TableEmptyError(message, reason="TABLE_EMPTY", metadata=fields)
    message = waited_text(name, round(waited_s, 1), waited_for, have, needed)
    return DeadlineExceededError(message, reason="WAITED_TOO_LONG", metadata=fields)


def _hopeless(members: Sequence[Member]) -> TableEmptyError | None:
    """Return the refusal of a shard that needs something else than rows; only shards of tables of steps do."""
    for member in members:
        if member.description.steps is None:
            continue
        try:
            member.session.connection.ask(_draw_one(member), timeout_s=ASK_S)
        except TableEmptyError as refusal:
            if refusal.metadata.get("waited_for", "rows") != "rows":
                return refusal
        except ReplayError:
            continue  # it may have been lost meanwhile
    return None


def _draw_one(member: Member) -> Operation[None]:
    draw = replay_pb2.Draw(batch_size=1, charged_apart=True)
    request = replay_pb2.SampleRequest(table=member.table.name, table_uid=member.table.uid, draw=draw)
    yield Call("Sample", request.SerializeToString())
