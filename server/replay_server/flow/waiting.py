"""Lets draws and inserts wait until they may proceed.

A draw waits until the table has rows and the table's gate grants them. An insert waits until the gate allows it. See
`replay_server.table.gates`. Draws and inserts wait in separate lines, first come, first served. Call `Waiters.changed`
after every change that may let a waiting call proceed. It serves the waiting calls immediately, so no later call can
overtake them. A call that is refused has had no effect.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from replay_server import errors
from replay_server.auth.caller import Caller
from replay_server.errors import Lack, RequestError, WaitedFor
from replay_server.flow import inserting
from replay_server.flow.budgets import Budget
from replay_server.flow.inserting import takes_long
from replay_server.flow.waits import Wait
from replay_server.table.gates import Gate
from replay_server.table.table import NewRows, Table, WriterStamp

T = TypeVar("T")


@dataclass(eq=False)
class _Draw:
    rows: int
    admitted: asyncio.Future[None]
    granted: int = 0
    since: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class _Insert:
    rows: NewRows
    stamp: WriterStamp | None
    admitted: asyncio.Future[range | Awaitable[range]]
    since: float = field(default_factory=time.monotonic)


@dataclass
class _Lines:
    """Calls waiting for one table."""

    draws: deque[_Draw] = field(default_factory=deque)
    inserts: deque[_Insert] = field(default_factory=deque)

    def refuse_all(self, refusal: Callable[[], RequestError]) -> None:
        """Refuse all waiting calls."""
        futures: list[asyncio.Future[Any]] = [
            *(draw.admitted for draw in self.draws),
            *(insert.admitted for insert in self.inserts),
        ]
        self.draws.clear()
        self.inserts.clear()
        for admitted in futures:
            if not admitted.done():
                admitted.set_exception(refusal())


class Waiters:
    """Lets calls wait until they may proceed, the table is reset or dropped, or the server shuts down."""

    def __init__(self, calls: Budget, rows: Budget, longest_s: float = math.inf) -> None:
        """Start without waiting calls.

        Args:
            calls: limits the number of waiting calls.
            rows: limits the bytes of waiting inserts.
            longest_s: maximum duration of a wait, in seconds.
        """
        self._longest_s = longest_s
        self._calls = calls
        self._rows = rows
        self._lines: dict[bytes, _Lines] = {}
        self._closing = False

    def check_draw(self, table: Table, rows: int, wait_s: float) -> None:
        """Refuse a draw that is too large, or that cannot run now although its ``wait_s`` is 0.

        Raises:
            RequestError: TABLE_EMPTY, LIMITED or TOO_LARGE.
        """
        if table.gate is not None:
            table.gate.check_draw(rows)
        if wait_s > 0:
            return
        if table.drawable == 0:
            raise errors.table_empty(table.name, table.draw_lacks(rows, 0))
        if table.gate is not None:
            granted = 0 if self._has_line(table, "draws") else table.gate.grant(rows)
            table.gate.give_back(granted)
            if granted < rows:
                raise errors.limited(table.name, table.gate.draw_lacks(rows, granted))

    async def draw(self, caller: Caller, table: Table, rows: int, wait_s: float) -> None:
        """Wait until ``rows`` rows may be drawn, and count them as drawn.

        Wait for at most ``wait_s`` seconds; infinity means as long as the call lasts. After the wait, the caller must
        look up the table again, because it may have been dropped. If the draw fails after it was counted, the caller
        must call `leave`.

        Raises:
            RequestError: TABLE_EMPTY, LIMITED, WAITED_TOO_LONG, TABLE_RESET, TABLE_NOT_FOUND, SHUTTING_DOWN,
                TOO_LARGE, or UNAUTHENTICATED if the caller's token becomes invalid.
        """
        self.check_draw(table, rows, wait_s)
        draw = _Draw(rows, asyncio.get_running_loop().create_future())
        if not self._has_line(table, "draws") and _grant(table, draw):
            _count_drawn(table, rows)
            # An insert may be waiting for these samples.
            self.changed(table)
            return
        resets = table.resets
        line = self._lines_of(table).draws
        line.append(draw)
        try:
            self.changed(table)
            waited_for = table.draw_lacks(rows, draw.granted).waited_for
            await self._wait(
                waited_for, caller, table, draw.admitted, wait_s, lambda: table.draw_lacks(rows, draw.granted)
            )
            if table.resets != resets:
                raise errors.table_reset(table.name)
            caller.check_valid()
            _count_drawn(table, rows)
        except BaseException:
            if draw in line:
                line.remove(draw)
            if draw.granted and table.gate is not None and table.resets == resets:
                table.gate.give_back(draw.granted)
            # Calls behind this one may now proceed.
            self.changed(table)
            raise

    async def insert(
        self, caller: Caller, table: Table, rows: NewRows, stamp: WriterStamp | None, wait_s: float | None
    ) -> range:
        """Insert rows like `Table.insert`, but wait until the insert is allowed.

        Wait for at most ``wait_s`` seconds. If this is None or infinity, only the server's limit on waits applies. A
        retry of an insert that has been applied does not wait.

        Raises:
            RequestError: as `Table.insert`; LIMITED, WAITED_TOO_LONG, TABLE_RESET, TABLE_NOT_FOUND, SHUTTING_DOWN,
                TOO_LARGE, or UNAUTHENTICATED if the caller's token becomes invalid.
        """
        table.check_rows_at_once(rows.count)
        if table.turns.are_free:
            inserted = self._insert(caller, table, rows, stamp, wait_s)
        else:
            async with table.turns.mine():
                inserted = self._insert(caller, table, rows, stamp, wait_s)
        return inserted if isinstance(inserted, range) else await inserted

    def _insert(
        self, caller: Caller, table: Table, rows: NewRows, stamp: WriterStamp | None, wait_s: float | None
    ) -> range | Awaitable[range]:
        """Insert rows, start a long insert, or join the line. If the result is awaitable, await it immediately."""
        gate = table.gate
        if gate is None or table.is_repeat(stamp):
            return self._apply(table, rows, stamp)
        gate.check_insert(rows.count)
        if not self._has_line(table, "inserts") and gate.insert_allowed(rows.count):
            return self._apply(table, rows, stamp)
        if wait_s == 0:
            lines = self._lines.get(table.uid)
            ahead = 0 if lines is None else _rows_up_to(lines.inserts)
            raise errors.limited(table.name, gate.insert_lacks(ahead + rows.count))
        size = rows.count * table.config.schema.row_bytes
        self._rows.check(caller.identity, size)
        insert = _Insert(rows, stamp, asyncio.get_running_loop().create_future())
        self._lines_of(table).inserts.append(insert)
        table.figures.counts.waiting_inserts += 1
        self._rows.take(caller.identity, size)
        return self._inserted(caller, table, gate, insert, size, wait_s)

    async def _inserted(
        self, caller: Caller, table: Table, gate: Gate, insert: _Insert, size: int, wait_s: float | None
    ) -> range:
        """Wait until an insert in line has been applied, and return its keys."""
        line = self._lines_of(table).inserts
        waited_for = gate.insert_lacks(insert.rows.count).waited_for
        try:
            inserted = await self._wait(
                waited_for, caller, table, insert.admitted, wait_s, lambda: gate.insert_lacks(_rows_up_to(line, insert))
            )
        finally:
            table.figures.counts.waiting_inserts -= 1
            self._rows.give_back(caller.identity, size)
            if insert in line:
                line.remove(insert)
                self.changed(table)
        return inserted if isinstance(inserted, range) else await inserted

    def _apply(self, table: Table, rows: NewRows, stamp: WriterStamp | None) -> range | Awaitable[range]:
        """Apply or start an allowed insert, then serve waiting calls."""
        inserted = self._insert_or_begin(table, rows, stamp)
        self.changed(table)
        return inserted

    def _insert_or_begin(self, table: Table, rows: NewRows, stamp: WriterStamp | None) -> range | Awaitable[range]:
        if not takes_long(table, rows):
            return table.insert(rows, stamp)

        begun = table.turns.begin(inserting.insert(table, rows, stamp), lambda: self.changed(table))
        # The insert completes even if the caller hangs up.
        return asyncio.shield(begun)

    def changed(self, table: Table) -> None:
        """Serve waiting calls. Call this after rows were inserted, removed, granted or given back."""
        lines = self._lines.get(table.uid)
        if lines is None:
            return
        moved = True
        while moved:
            moved = self._serve_draws(table, lines.draws)
            moved = self._serve_inserts(table, lines.inserts) or moved
        if not lines.draws and not lines.inserts:
            del self._lines[table.uid]

    def waits(self, table: Table) -> Iterator[Wait]:
        """Yield one `Wait` for all waiting draws, and one for all waiting inserts, if there are any."""
        lines = self._lines.get(table.uid, _Lines())
        draws = [draw for draw in lines.draws if not draw.admitted.done()]
        if draws:
            lack = table.draw_lacks(draws[0].rows, draws[0].granted)
            yield Wait.of(table, lack, len(draws), draws[0].since)
        inserts = [insert for insert in lines.inserts if not insert.admitted.done()]
        if inserts and table.gate is not None:
            lack = table.gate.insert_lacks(inserts[0].rows.count)
            yield Wait.of(table, lack, len(inserts), inserts[0].since)

    def leave(self, table: Table, rows: int, resets: int) -> None:
        """Give back the rows of a draw that was counted but then failed, unless the table was reset in between.

        ``resets`` is the value of `Table.resets` when the draw was counted. A rate limiter does not take the rows back:
        they stay counted.
        """
        if table.gate is not None and table.resets == resets:
            table.gate.count_failed(rows)
            self.changed(table)

    def send_away(self, table: Table, refusal: Callable[[str], RequestError]) -> None:
        """Refuse all calls waiting for a table; ``refusal`` receives its name."""
        lines = self._lines.pop(table.uid, None)
        if lines is not None:
            lines.refuse_all(lambda: refusal(table.name))

    def close(self) -> None:
        """Refuse all waiting calls; later calls cannot wait."""
        self._closing = True
        for lines in self._lines.values():
            lines.refuse_all(errors.shutting_down)
        self._lines.clear()

    async def _wait(
        self,
        waited_for: WaitedFor,
        caller: Caller,
        table: Table,
        admitted: asyncio.Future[T],
        wait_s: float | None,
        lacks: Callable[[], Lack],
    ) -> T:
        """Wait until a call may proceed, and count it as waiting meanwhile."""
        if not admitted.done():
            if self._closing:
                raise errors.shutting_down()
            self._calls.check(caller.identity)
            table.figures.counts.waited += 1

        def expire(allowed_s: float) -> None:
            # A call that was served just before its deadline succeeds, because refused calls must have no effect.
            if not admitted.done():
                admitted.set_exception(errors.waited_too_long(table.name, allowed_s, lacks()))

        timer = None
        allowed_s = self._longest_s if wait_s is None else min(wait_s, self._longest_s)
        if allowed_s < math.inf:
            timer = asyncio.get_running_loop().call_later(allowed_s, expire, allowed_s)
        self._calls.take(caller.identity)

        def end(refusal: RequestError) -> None:
            if not admitted.done():
                admitted.set_exception(refusal)

        try:
            with caller.while_valid(end), table.figures.one_waits(waited_for):
                return await admitted
        finally:
            self._calls.give_back(caller.identity)
            if timer is not None:
                timer.cancel()

    def _has_line(self, table: Table, line: Literal["draws", "inserts"]) -> bool:
        """Whether calls are waiting in this line."""
        lines = self._lines.get(table.uid)
        return lines is not None and any(not waiter.admitted.done() for waiter in getattr(lines, line))

    def _lines_of(self, table: Table) -> _Lines:
        return self._lines.setdefault(table.uid, _Lines())

    def _serve_draws(self, table: Table, line: deque[_Draw]) -> bool:
        """Grant rows in order of arrival; return whether any were granted."""
        moved = False
        while line:
            draw = line[0]
            if not draw.admitted.done():
                before = draw.granted
                if not _grant(table, draw):
                    return moved or draw.granted > before
                draw.admitted.set_result(None)
                moved = True
            line.popleft()
        return moved

    def _serve_inserts(self, table: Table, line: deque[_Insert]) -> bool:
        """Apply allowed inserts in order of arrival; return whether any was applied."""
        moved = False
        while line and table.turns.under_way is None:
            insert = line[0]
            if not insert.admitted.done():
                try:
                    if not _insert_allowed(table, insert):
                        return moved
                    insert.admitted.set_result(self._insert_or_begin(table, insert.rows, insert.stamp))
                except Exception as error:
                    insert.admitted.set_exception(error)
                moved = True
            line.popleft()
        return moved


def _grant(table: Table, draw: _Draw) -> bool:
    """Grant available rows to a draw; return whether it now has all its rows."""
    if table.gate is None:
        return table.drawable > 0
    draw.granted += table.gate.grant(draw.rows - draw.granted)
    return draw.granted == draw.rows


def _count_drawn(table: Table, rows: int) -> None:
    if table.gate is not None:
        table.gate.count_drawn(rows)


def _rows_up_to(line: Iterable[_Insert], last: _Insert | None = None) -> int:
    """Return the number of rows of the waiting inserts up to and including ``last``, or of all if it is None."""
    rows = 0
    for insert in line:
        rows += 0 if insert.admitted.done() else insert.rows.count
        if insert is last:
            break
    return rows


def _insert_allowed(table: Table, insert: _Insert) -> bool:
    """Whether an insert may proceed, because it is allowed or has already been applied on another stream."""
    return table.gate is None or table.gate.insert_allowed(insert.rows.count) or table.is_repeat(insert.stamp)
