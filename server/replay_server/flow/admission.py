"""Admits the draws, inserts and resets of one table when their turn has come and the table's gate allows them.

    admission = Admission(table, limits)
    keys = await admission.insert(caller, rows, stamp, wait_s)
    await admission.draw(caller, rows, wait_s)      # afterwards, the rows may be drawn
    admission.changed()                             # after another change that may let a waiting call proceed

Draws wait in one line, until the table has rows and the gate grants them (`replay_server.table.gates`). What stores
rows waits in another line: inserts until the gate allows them, and inserts and resets until the work before them has
ended, because large inserts and resets use a worker thread. Both lines are first come, first served. They are served at
each change, so that no later call can overtake a waiting one. Only a reset does not wait for inserts that the gate
blocks. Reads that wait for rows yet to be inserted are in no line.

A call that waits counts against its caller's share of waiting calls and bytes, has a time limit, and ends if its token
becomes invalid. A call that is refused has had no effect. Work that has begun runs to its end, even if its caller stops
waiting.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from replay_server import errors
from replay_server.auth import Caller
from replay_server.errors import Lack, RequestError
from replay_server.flow.background import Job
from replay_server.flow.budgets import Budget
from replay_server.flow.waits import Wait
from replay_server.storage.delivery_log import ReaderStamp
from replay_server.table.table import NewRows, Table, WriterStamp

T = TypeVar("T")

INSERTED_ON_LOOP_BYTES: Final = 1 << 20
"""Maximum bytes of an insert that runs on the event loop. Storing 1 MiB into new pages of a file takes 1 ms in memory
and 8 ms on disk. The client's writers send at most this much at a time, unless a row is larger."""

RETURN_S: Final = 10.0
"""Seconds for which a restarted server keeps rows for readers that may repeat their draws, from the first insert on.
Clients try to reconnect about twice per second."""

Work: TypeAlias = Callable[[Callable[[], None]], Coroutine[Any, Any, int]]
"""Removes all rows of a table, calls its argument at once when they are gone, and returns their number."""


@dataclass
class Limits:
    """Limits on the waiting calls of all tables."""

    calls: Budget
    """Limits the number of waiting calls."""
    bytes_: Budget
    """Limits the bytes of waiting inserts."""
    longest_s: float = math.inf
    """Maximum duration of a wait, in seconds."""
    inline_bytes: int = INSERTED_ON_LOOP_BYTES
    """Maximum bytes of an insert that runs on the event loop."""
    is_closing: bool = False
    """Whether the server shuts down, so that no call may wait any longer."""


@dataclass(eq=False)
class _Waiting:
    """A call in a line."""

    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Ends with the wait: when the call has begun, is refused, or its caller has hung up."""
    since: float = field(default_factory=time.monotonic)

    def refuse(self, refusal: Exception) -> None:
        """Refuse the call, unless it has begun."""
        if not self.turn.done():
            self.turn.set_exception(refusal)

    def expire(self, refusal: Exception) -> None:
        """End the wait at its time limit."""
        self.refuse(refusal)


@dataclass(eq=False, kw_only=True)
class _Draw(_Waiting):
    rows: int
    least: int
    """Rows that must be drawable."""
    stamp: ReaderStamp | None
    granted: int = 0
    repeats: bool = False
    """Whether it was let through as a repeat."""


@dataclass(eq=False, kw_only=True)
class _Read(_Waiting):
    inserted: int
    """Number of rows ever inserted for which it waits."""

    def expire(self, refusal: Exception) -> None:
        """Let the read return what there is."""
        self.turn.set_result(None)


@dataclass(eq=False, kw_only=True)
class _Insert(_Waiting):
    rows: NewRows
    stamp: WriterStamp | None
    result: range | Job[range] = range(0)
    """Keys of the rows, or the job that stores them; set when the turn ends."""


@dataclass(eq=False, kw_only=True)
class _Reset(_Waiting):
    work: Work
    result: Job[int] | None = None
    """Set when the turn ends."""


class Admission:
    """The lines of one table."""

    def __init__(self, table: Table, limits: Limits) -> None:
        """Start without waiting calls."""
        self.table = table
        self.gone: Callable[[], RequestError] | None = None
        """Returns the refusal of calls once the table was dropped; None before that."""
        self._limits = limits
        self._draws: deque[_Draw] = deque()
        self._reads: list[_Read] = []
        self._stores: deque[_Insert | _Reset] = deque()
        self._running: Job[Any] | None = None
        """The large insert or reset in progress."""
        self._gives_up: asyncio.TimerHandle | None = None
        """Gives up readers that have not come back since a restart."""

    @property
    def is_storing(self) -> bool:
        """Whether a large insert or a reset is in progress."""
        return self._running is not None

    def check_draw(self, rows: int, wait_s: float, least: int = 1) -> None:
        """Refuse a draw that is too large, or that cannot run now although its ``wait_s`` is 0.

        Raises:
            RequestError: TABLE_EMPTY, LIMITED or TOO_LARGE.
        """
        table, gate = self.table, self.table.gate
        if least > table.config.capacity:
            raise errors.too_large("different rows of one draw", table.config.capacity, least, "capacity of the table")
        if gate is not None:
            gate.check_draw(rows)
        if wait_s > 0:
            return
        if table.drawable == 0:
            raise errors.table_empty(table.name, table.draw_lacks(rows, 0, least))
        if table.drawable < least:
            raise errors.limited(table.name, Lack("rows", table.drawable, least))
        if gate is not None:
            granted = 0 if _has_waiting(self._draws) else gate.grant(rows)
            lack = gate.draw_lacks(rows, granted)
            gate.give_back(granted)
            if granted < rows:
                raise errors.limited(table.name, lack)

    async def draw(
        self,
        caller: Caller,
        rows: int,
        wait_s: float,
        least: int = 1,
        stamp: ReaderStamp | None = None,
    ) -> bool:
        """Wait until ``rows`` rows may be drawn and at least ``least`` are drawable, and count them as drawn.

        Wait for at most ``wait_s`` seconds; infinity means as long as the call lasts. After the wait, the table may
        have been dropped. If the draw fails after it was counted, the caller must call `leave`.

        Return whether it was counted. A repeat of a draw from a queue, which ``stamp`` tells, is not, because the first
        one was. It may become one only during the wait, if the first one still waits on a stream that has broken.

        Raises:
            RequestError: TABLE_EMPTY, LIMITED, WAITED_TOO_LONG, TABLE_RESET, TABLE_NOT_FOUND, SHUTTING_DOWN,
                TOO_LARGE, or UNAUTHENTICATED if the caller's token becomes invalid.
        """
        table = self.table
        if stamp is not None:
            if table.reader_received(stamp.reader_id, stamp.received):
                self.changed()
            if table.was_given(stamp, rows):
                return False
        self.check_draw(rows, wait_s, least)
        draw = _Draw(rows=rows, least=least, stamp=stamp)
        if not _has_waiting(self._draws) and self._grant(draw):
            self._count_drawn(rows)
            # An insert may be waiting for these samples.
            self.changed()
            return True
        resets = table.resets
        self._draws.append(draw)
        try:
            self.changed()
            await self._wait(draw, caller, wait_s, lambda: table.draw_lacks(rows, draw.granted, least))
            if table.resets != resets:
                raise errors.table_reset(table.name)
            caller.check_valid()
            if not draw.repeats:
                self._count_drawn(rows)
                return True
        except BaseException:
            if draw in self._draws:
                self._draws.remove(draw)
            if draw.granted and table.gate is not None and table.resets == resets:
                table.gate.give_back(draw.granted)
            # Calls behind this one may now proceed.
            self.changed()
            raise
        if draw.granted and table.gate is not None:
            table.gate.give_back(draw.granted)
            self.changed()
        return False

    def leave(self, rows: int, resets: int) -> None:
        """Give back the rows of a draw that was counted but then failed, unless the table was reset in between.

        ``resets`` is the value of `Table.resets` when the draw was counted.
        """
        if self.table.gate is not None and self.table.resets == resets:
            self.table.gate.count_failed(rows)
            self.changed()

    async def wait_inserted(self, caller: Caller, rows: int, wait_s: float) -> None:
        """Wait until ``rows`` rows were ever inserted, but no longer than ``wait_s`` seconds.

        Infinity means as long as the call lasts. Reads wait in no line, because they take nothing from other calls.

        Raises:
            RequestError: TABLE_NOT_FOUND, SHUTTING_DOWN, TOO_LARGE, or UNAUTHENTICATED if the caller's token becomes
                invalid.
        """
        table = self.table
        if table.inserted >= rows or wait_s == 0:
            return
        read = _Read(inserted=rows)
        self._reads.append(read)
        try:
            await self._wait(read, caller, wait_s, lambda: Lack("rows", table.inserted, rows))
        finally:
            if read in self._reads:
                self._reads.remove(read)

    async def insert(self, caller: Caller, rows: NewRows, stamp: WriterStamp | None, wait_s: float | None) -> range:
        """Insert rows like `Table.insert`, but wait until the insert is allowed.

        Wait for at most ``wait_s`` seconds. If this is None or infinity, only the server's limit on waits applies. A
        retry of an insert that has been applied waits at most for work in progress.

        Raises:
            RequestError: as `Table.insert`; LIMITED, WAITED_TOO_LONG, TABLE_RESET, TABLE_NOT_FOUND, SHUTTING_DOWN,
                TOO_LARGE, or UNAUTHENTICATED if the caller's token becomes invalid.
        """
        table = self.table
        if table.gate is not None and table.gate.keeps_for_readers:
            self._give_up_readers_soon()
        table.check_rows_at_once(rows.count)
        if self._may_insert_at_once(rows, stamp):
            if not self._takes_long(rows):
                keys = table.insert(rows, stamp)
                self.changed()
                return keys
            return await self._run(self._insert_beside(rows, stamp)).outcome()
        if wait_s == 0:
            raise errors.limited(table.name, self._insert_lacks(rows.count))
        return await self._insert_in_turn(caller, _Insert(rows=rows, stamp=stamp), wait_s)

    async def reset(self, caller: Caller, work: Work) -> int:
        """Remove all rows when the work before this has ended, and refuse the calls that waited for them.

        Inserts that came later proceed afterwards.

        Args:
            caller: the caller.
            work: see `Work`.

        Raises:
            RequestError: from the work; TABLE_NOT_FOUND, SHUTTING_DOWN, TOO_LARGE, or UNAUTHENTICATED if the caller's
                token becomes invalid.
        """
        reset = _Reset(work=work)
        self._stores.append(reset)
        try:
            self.changed()
            await self._wait(reset, caller, None, lambda: self._turn_lacks(reset))
        finally:
            self._leave_line(reset)
        assert reset.result is not None
        return await reset.result.outcome()

    def changed(self) -> None:
        """Serve waiting calls. Call this after rows were inserted, removed, granted or given back."""
        moved = bool(self._draws or self._stores)
        while moved:
            moved = self._serve_draws()
            moved = self._serve_stores() or moved
        if self._draws:
            self._end_mutual_waits()
        for read in self._reads:
            if read.inserted <= self.table.inserted and not read.turn.done():
                read.turn.set_result(None)

    def waits(self) -> Iterator[Wait]:
        """Yield one `Wait` for all waiting draws, and one for all waiting inserts, if there are any."""
        draws = [draw for draw in self._draws if not draw.turn.done()]
        if draws:
            lack = self.table.draw_lacks(draws[0].rows, draws[0].granted, draws[0].least)
            yield Wait.of(self.table, lack, len(draws), draws[0].since)
        inserts = [each for each in self._stores if isinstance(each, _Insert) and not each.turn.done()]
        if inserts:
            lack = self._insert_lacks(0, inserts[0])
            yield Wait.of(self.table, lack, len(inserts), inserts[0].since)

    def drop(self, gone: Callable[[], RequestError]) -> None:
        """Refuse all waiting and later calls, because the table is being dropped."""
        self.gone = gone
        self.refuse_all(gone)

    def refuse_all(self, refusal: Callable[[], RequestError]) -> None:
        """Refuse all waiting calls."""
        if self._gives_up is not None:
            self._gives_up.cancel()
            self._gives_up = None
        waiting: list[_Waiting] = [*self._draws, *self._reads, *self._stores]
        self._draws.clear()
        self._reads.clear()
        self._stores.clear()
        for each in waiting:
            each.refuse(refusal())

    async def idle(self) -> None:
        """Wait until no large insert or reset is in progress."""
        while self._running is not None:
            await asyncio.wait([self._running.task])

    def _give_up_readers_soon(self) -> None:
        if self._gives_up is None and not self._limits.is_closing:
            self._gives_up = asyncio.get_running_loop().call_later(RETURN_S, self._give_up_readers)

    def _give_up_readers(self) -> None:
        self._gives_up = None
        self.table.give_up_readers()
        self.changed()

    def _may_insert_at_once(self, rows: NewRows, stamp: WriterStamp | None) -> bool:
        gate = self.table.gate
        if self._running is not None:
            if gate is not None:
                gate.check_insert(rows.count)
            return False
        if gate is None:
            return True  # without a gate, calls wait only for work in progress
        if self.table.is_repeat(stamp):
            return True
        gate.check_insert(rows.count)
        return not _has_waiting(self._stores) and gate.insert_allowed(rows.count)

    async def _insert_in_turn(self, caller: Caller, insert: _Insert, wait_s: float | None) -> range:
        size = insert.rows.count * self.table.config.schema.row_bytes
        counts = self.table.figures.counts
        with self._limits.bytes_.held(caller.identity, size):
            self._stores.append(insert)
            counts.waiting_inserts += 1
            try:
                self._end_mutual_waits()
                await self._wait(insert, caller, wait_s, lambda: self._insert_lacks(0, insert))
            finally:
                counts.waiting_inserts -= 1
                self._leave_line(insert)
        return insert.result if isinstance(insert.result, range) else await insert.result.outcome()

    def _leave_line(self, each: _Insert | _Reset) -> None:
        if each in self._stores:
            self._stores.remove(each)
            self.changed()

    async def _wait(self, waiting: _Waiting, caller: Caller, wait_s: float | None, lacks: Callable[[], Lack]) -> None:
        """Wait until the turn of a call has come, and count it as waiting meanwhile."""
        limits, table, turn = self._limits, self.table, waiting.turn
        if turn.done():
            return await turn
        if limits.is_closing:
            raise errors.shutting_down()

        def expire(allowed_s: float) -> None:
            # A call that was served just before its deadline succeeds, because refused calls must have no effect.
            if not turn.done():
                waiting.expire(errors.waited_too_long(table.name, allowed_s, lacks()))

        timer = None
        allowed_s = limits.longest_s if wait_s is None else min(wait_s, limits.longest_s)
        with limits.calls.held(caller.identity):
            if allowed_s < math.inf:
                timer = asyncio.get_running_loop().call_later(allowed_s, expire, allowed_s)
            table.figures.counts.waited += 1
            try:
                with caller.while_valid(waiting.refuse), table.figures.one_waits(lacks().waited_for):
                    await turn
            finally:
                if timer is not None:
                    timer.cancel()

    def _serve_draws(self) -> bool:
        """Grant rows in order of arrival; return whether any were granted."""
        moved = False
        while self._draws:
            draw = self._draws[0]
            if not draw.turn.done():
                before = draw.granted
                if not self._grant(draw):
                    return moved or draw.granted > before
                draw.turn.set_result(None)
                moved = True
            self._draws.popleft()
        return moved

    def _serve_stores(self) -> bool:
        """Begin allowed inserts and resets in order of arrival; return whether any has begun."""
        moved = False
        while self._running is None and (each := self._next_store()) is not None:
            try:
                self._begin(each)
                each.turn.set_result(None)
            except Exception as error:
                each.refuse(error)
            self._stores.remove(each)
            moved = True
        return moved

    def _end_mutual_waits(self) -> None:
        """Let go of rows that are kept for readers, or refuse the first draw, if draws and inserts wait for each other.

        A reader whose new draw waits cannot say that it has received its earlier draws, which were sent before.
        """
        gate = self.table.gate
        if gate is None or self._running is not None or not self._draws or not self._stores:
            return
        draw, store = self._draws[0], self._stores[0]
        if store.turn.done() or self._is_allowed(store):
            return
        if gate.keeps_for_readers:
            stamps = [each.stamp for each in self._draws if each.stamp is not None]
            if any(self.table.reader_received(each.reader_id, each.sequence - 1) for each in stamps):
                self.changed()
        elif gate.blocks_inserts(draw.granted):
            bound = "sequences of one draw, while rows of unfinished ones fill the queue"
            draw.refuse(errors.too_large(bound, draw.granted, draw.rows, "capacity of the queue"))

    def _begin(self, each: _Insert | _Reset) -> None:
        if isinstance(each, _Reset):
            blocked = [*self._stores][: self._stores.index(each)]
            each.result = self._run(each.work(lambda: self._removed(blocked)))
            return
        gate = self.table.gate
        if gate is not None and not self.table.is_repeat(each.stamp):
            gate.check_insert(each.rows.count)  # again: a reset may have changed what the gate allows
        if self._takes_long(each.rows):
            each.result = self._run(self._insert_beside(each.rows, each.stamp))
        else:
            each.result = self.table.insert(each.rows, each.stamp)

    def _removed(self, blocked: Iterable[_Waiting]) -> None:
        """Refuse calls that waited for rows, or for room among rows, that a reset has removed."""
        for each in (*blocked, *self._draws):
            each.refuse(errors.table_reset(self.table.name))
        self._draws.clear()

    def _next_store(self) -> _Insert | _Reset | None:
        """Return the first call in line if it is allowed, or else the first reset; None: all have to wait."""
        while self._stores and self._stores[0].turn.done():
            self._stores.popleft()
        if self._stores and self._is_allowed(self._stores[0]):
            return self._stores[0]
        return next((each for each in self._stores if isinstance(each, _Reset) and not each.turn.done()), None)

    def _is_allowed(self, each: _Insert | _Reset) -> bool:
        """Whether a call may begin, if only to be refused."""
        gate = self.table.gate
        if gate is None or isinstance(each, _Reset) or gate.insert_allowed(each.rows.count):
            return True
        try:
            if self.table.is_repeat(each.stamp):  # it was applied on another stream meanwhile
                return True
            gate.check_insert(each.rows.count)
        except RequestError:
            return True
        return False

    def _grant(self, draw: _Draw) -> bool:
        """Grant available rows to a draw; return whether it now has all its rows."""
        gate, has_rows = self.table.gate, self.table.drawable >= draw.least
        if draw.stamp is not None and self.table.was_given(draw.stamp, draw.rows):
            draw.repeats = True
            return True
        if gate is None:
            return has_rows
        draw.granted += gate.grant(draw.rows - draw.granted)
        return has_rows and draw.granted == draw.rows

    def _count_drawn(self, rows: int) -> None:
        if self.table.gate is not None:
            self.table.gate.count_drawn(rows)

    def _insert_lacks(self, rows: int, insert: _Insert | None = None) -> Lack:
        """Return what a waiting insert lacks; None: what one of ``rows`` rows at the end of the line lacks."""
        gate = self.table.gate
        if gate is None or self._running is not None:
            return self._turn_lacks(insert)
        for each in self._stores:
            rows += each.rows.count if isinstance(each, _Insert) and not each.turn.done() else 0
            if each is insert:
                break
        return gate.insert_lacks(rows)

    def _turn_lacks(self, waiting: _Waiting | None) -> Lack:
        """Return what a call lacks that only waits for its turn; None: one at the end of the line."""
        ahead = int(self._running is not None)
        for each in self._stores:
            if each is waiting:
                break
            ahead += not each.turn.done()
        return Lack("turn", 0, max(1, ahead))

    def _takes_long(self, rows: NewRows) -> bool:
        """Whether to insert these rows in a worker thread."""
        return rows.count * self.table.config.schema.row_bytes > self._limits.inline_bytes

    def _run(self, work: Coroutine[Any, Any, T]) -> Job[T]:
        """Start a large insert or a reset. It runs to its end even if nobody waits for it."""

        def ended(_: asyncio.Task[T]) -> None:
            self._running = None
            self.changed()

        self._running = job = Job(work)
        job.task.add_done_callback(ended)
        return job

    async def _insert_beside(self, rows: NewRows, stamp: WriterStamp | None) -> range:
        """Insert rows like `Table.insert`, but in a worker thread.

        The thread stores the rows in spare slots of the ring. Then the event loop makes them all live in one step. In
        between, no other insert or reset runs, and other operations can only free up room. So an insert that is allowed
        at the start is still allowed at the end.
        """
        table = self.table
        repeated = table.find_repeat(rows, stamp)
        if repeated is not None:
            return repeated
        await asyncio.to_thread(table.reserve, rows.count)
        async with table.directory.storing_beside:
            await asyncio.to_thread(table.store, rows, stamp)
        return table.commit(rows, stamp)


def _has_waiting(line: Iterable[_Waiting]) -> bool:
    return any(not each.turn.done() for each in line)
