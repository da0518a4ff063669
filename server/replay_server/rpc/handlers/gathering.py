"""Builds serialized replies with rows, on the event loop or in a worker thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray
from replay_proto.framing import Carried, column_views, joined_message, message_with_rows
from replay_proto.schema import Column
from replay_proto.steps import Sequences

from replay_server import errors
from replay_server.catalog import Catalog
from replay_server.flow.bounds import ABOUT_A_BATCH_BYTES, ABOUT_A_ROW_BYTES
from replay_server.flow.turns import LONG_ROWS
from replay_server.rpc.call import Call
from replay_server.table.items.items import Windows
from replay_server.table.table import Table

GATHERED_ON_LOOP_BYTES = 1 << 22
"""Maximum bytes gathered on the event loop, which takes about 0.3 ms. Larger replies are gathered in a worker thread;
switching there and back blocks the loop for 0.1 ms."""
_ATTEMPTS_BESIDE = 3
"""Maximum attempts to gather rows in a worker thread. If rows change each time, the event loop does it."""


class Gathered(NamedTuple):
    """The rows of a batch."""

    keys: NDArray[np.int64]
    """int64[n]: keys of the drawn rows. In a table of steps, these rows are anchors of windows."""
    windows: Windows | None = None
    """Windows around the anchors; None in a plain table."""

    @property
    def rows(self) -> NDArray[np.int64]:
        """int64[r]: keys of all rows to copy."""
        return self.keys if self.windows is None else self.windows.keys

    @property
    def window_count(self) -> int | None:
        """Number of windows; None in a plain table."""
        return None if self.windows is None else len(self.keys)


Choice = tuple[Message, Sequence[Gathered]]
"""A reply without its rows, and the rows to copy for each of its batches."""


def window_rows(table: Table) -> int:
    """Maximum number of rows to copy for each drawn item."""
    return 1 if table.config.steps is None else table.config.steps.window.rows


def reply_bytes(rows: int, carried: Carried | None, batches: int = 1) -> int:
    """Return an upper bound on the size of a reply in bytes. If ``carried`` is None, the reply has no rows."""
    of_rows = 0 if carried is None else carried.size(rows)
    return of_rows + rows * ABOUT_A_ROW_BYTES + batches * ABOUT_A_BATCH_BYTES


async def hold_reply(call: Call, catalog: Catalog, size: int, rows: int) -> bool:
    """Wait until a reply may be built on the event loop, and charge its bytes to the budget until it is sent.

    Return whether the call had to wait. After the wait, the caller's token must still be valid.
    """
    caller = call.caller.identity
    waits = not catalog.outgoing.take_now(caller, size)
    if waits:
        await catalog.outgoing.take_in_turn(caller, size)
    call.when_sent(lambda: catalog.outgoing.give_back(caller, size))
    if rows > LONG_ROWS:
        waits |= await catalog.long_calls.turn(caller)
    if waits:
        call.caller.check_valid()
    return waits


def check_reply_size(carried: Carried, rows: int, limit_bytes: int, batches: int = 1) -> None:
    """Check that a reply with this many rows and their metadata does not exceed the limit."""
    size = reply_bytes(rows, carried, batches)
    if size > limit_bytes:
        raise errors.too_large("bytes of a reply", limit_bytes, size, "max_reply_mb of the server")


async def reply_with_rows(table: Table, carried: Carried, choose: Callable[[], Choice], rows: int) -> bytes:
    """Build a serialized reply with at most ``rows`` rows of a table; ``carried`` are the columns to gather.

    ``choose`` returns the reply without its rows, and for each batch the rows to gather. If rows are overwritten or
    updated while they are gathered, ``choose`` is called again, and only the last result is used.
    """
    if carried.size(rows) > GATHERED_ON_LOOP_BYTES:
        for _ in range(_ATTEMPTS_BESIDE):
            head, batches = choose()
            versions = [table.directory.rows.versions(batch.rows) for batch in batches]
            message = await asyncio.to_thread(_gather, table, carried, head, batches)
            if all(_is_whole(table, batch, seen) for batch, seen in zip(batches, versions, strict=True)):
                return message
    return _joined(table, carried, *choose())


def _is_whole(table: Table, batch: Gathered, versions: NDArray[np.int64] | None) -> bool:
    """Whether no row of a batch was overwritten, or updated since it had these versions."""
    if len(batch.keys) and table.overtaken(batch.rows):
        return False
    now = table.directory.rows.versions(batch.rows)
    return versions is None or now is None or np.array_equal(versions, now)


def _joined(table: Table, carried: Carried, head: Message, batches: Sequence[Gathered]) -> bytes:
    """Build a reply on the event loop, where no insert can overwrite rows meanwhile."""
    stored, parts = table.directory.rows, list[memoryview]()
    for batch in batches:
        for name, column in carried.columns.items():
            parts += stored.parts(_keys_of(table, column, batch), name)
    return joined_message(head, parts)


def _gather(table: Table, carried: Carried, head: Message, batches: Sequence[Gathered]) -> bytes:
    sizes = [carried.size(len(batch.rows), batch.window_count) for batch in batches]

    def write(rows: NDArray[np.uint8]) -> None:
        start = 0
        for batch, size in zip(batches, sizes, strict=True):
            _gather_batch(table, carried.columns, batch, rows[start : start + size])
            start += size

    return message_with_rows(head, sum(sizes), write)


def _gather_batch(table: Table, columns: Mapping[str, Column], batch: Gathered, into: NDArray[np.uint8]) -> None:
    for name, view in column_views(columns, into, len(batch.rows), batch.window_count).items():
        table.directory.rows.gather(_keys_of(table, columns[name], batch), {name: view})


def _keys_of(table: Table, column: Column, batch: Gathered) -> NDArray[np.int64]:
    """Return the keys, int64[n], of the rows from which the reply takes this column."""
    steps = table.config.steps
    if batch.windows is None or column.at != "start" or steps is None or not isinstance(steps.item, Sequences):
        return batch.rows
    return batch.rows[batch.windows.firsts(steps.item.burn_in)]  # a stack may need rows before the sequence
