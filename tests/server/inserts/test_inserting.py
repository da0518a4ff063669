"""Large inserts step by step: operations on a table while a thread stores rows."""

from __future__ import annotations

import asyncio
import errno
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from replay_proto.framing import Array
from replay_proto.rate_limit import RateLimit
from replay_proto.v1 import replay_pb2
from replay_server import backends, errors
from replay_server.auth import Caller
from replay_server.catalog import Catalog
from replay_server.errors import RequestError
from replay_server.files.mapped_file import NoSpaceError
from replay_server.flow.budgets import Budget
from replay_server.storage.root import Root
from replay_server.storage.row_store import RowStore
from replay_server.storage.table_config import TableConfig
from replay_server.table.draws import Draw
from replay_server.table.table import NewRows, Table, WriterStamp

from tests.support.drawing import draw_batch
from tests.support.invariants import check_table
from tests.support.rows import WHOLE, columns_of, values_in

LARGE = 1000
"""Rows of the smallest insert that is copied in a worker thread."""
CAPACITY = 192 * LARGE
"""Capacity of a table that accepts inserts of up to three times as many rows."""
WRITER = WriterStamp(b"w" * 16, 1)


def catalog_at(folder: Path, *, large: int = LARGE, checked: bool = False) -> Catalog:
    """A catalog in which inserts of at least ``large`` rows use a thread."""
    catalog = Catalog(Root.durable(folder), checked=checked)
    catalog.limits.inline_bytes = large * WHOLE.row_bytes - 1
    return catalog


def rows_from(first: int, count: int, priorities: NDArray[np.float64] | None = None) -> NewRows:
    """Rows with consecutive numbers, starting with ``first``."""
    return NewRows(columns_of(np.arange(first, first + count)), count, priorities)


def values_at(table: Table, keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers of rows, after checking that each row is intact."""
    out: dict[str, Array] = {name: np.empty((len(keys), *c.shape), c.dtype) for name, c in WHOLE.items()}
    table.directory.rows.gather(keys, out)
    return values_in(b"".join(column.tobytes() for column in out.values()))


def live_keys(table: Table) -> NDArray[np.int64]:
    return np.arange(table.oldest, table.inserted)


class Held:
    """A table with a large insert in progress, which stores its rows only after it is released."""

    def __init__(self, catalog: Catalog, table: Table, rows: NewRows, stamp: WriterStamp | None) -> None:
        self.catalog = catalog
        self.table = table
        self.large = self.insert(rows, stamp)

    def insert(self, rows: NewRows, stamp: WriterStamp | None = None) -> asyncio.Task[range]:
        """Start another insert."""
        return asyncio.create_task(self.catalog.lease("t").admission.insert(Caller(), rows, stamp, None))

    def let_on(self) -> None:
        """Release the large insert."""
        self.table.directory.storing_beside.release()


@asynccontextmanager
async def held(
    folder: Path, rows: NewRows | None = None, stamp: WriterStamp | None = None, large: int = LARGE, **config: Any
) -> AsyncIterator[Held]:
    """Start a large insert of rows 0, 1, ... into a new table that already has rows 1000, 1001 and 1002."""
    catalog = catalog_at(folder, large=large, checked=config.pop("checked", False))
    table, _ = await catalog.create(TableConfig("t", WHOLE, **{"capacity": CAPACITY, **config}))
    await catalog.lease("t").admission.insert(Caller(), rows_from(1000, 3, np.array([1.0, 7.0, 3.0])), None, None)
    await table.directory.storing_beside.acquire()
    it = Held(catalog, table, rows or rows_from(0, LARGE), stamp)
    while not catalog.lease("t").admission.is_storing:
        await asyncio.sleep(0)
    yield it
    await catalog.inserts_ended()
    check_table(table)
    catalog.close()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


def test_draws_and_updates_go_on_and_see_no_row_of_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with held(tmp_path) as it:
            assert set(draw_batch(it.table, Draw(64, beta=1.0)).keys) <= {0, 1, 2}
            assert it.table.update(np.array([1, 3]), np.array([9.0, 9.0])) == (1, 1)
            assert (it.table.size, it.large.done()) == (3, False)
            it.let_on()
            assert await it.large == range(3, 3 + LARGE)
            assert values_at(it.table, live_keys(it.table)).tolist() == [1000, 1001, 1002, *range(LARGE)]
            assert set(it.table.priorities(np.arange(3, 3 + LARGE))) == {9.0}, "the largest when they became live"

    run(test)


def test_other_inserts_wait_for_their_turn_and_keep_their_order(tmp_path: Path) -> None:
    async def test() -> None:
        async with held(tmp_path) as it:
            others = [it.insert(rows_from(2000, 2)), it.insert(rows_from(0, LARGE)), it.insert(rows_from(3000, 2))]
            for _ in range(10):
                await asyncio.sleep(0)
            assert it.table.inserted == 3
            it.let_on()
            keys = [await each for each in (it.large, *others)]
            assert [each.start for each in keys] == [3, 3 + LARGE, 5 + LARGE, 5 + 2 * LARGE]
            assert not it.catalog.lease("t").admission.is_storing

    run(test)


def test_who_gives_up_while_others_wait_leaves_no_gap(tmp_path: Path) -> None:
    async def test() -> None:
        async with held(tmp_path) as it:
            first, second = it.insert(rows_from(2000, 2)), it.insert(rows_from(3000, 2))
            await asyncio.sleep(0)
            first.cancel()
            it.let_on()
            assert (await second).start == 3 + LARGE
            assert first.cancelled()

    run(test)


def test_an_insert_whose_caller_hangs_up_goes_on_to_its_end(tmp_path: Path) -> None:
    async def test() -> None:
        async with held(tmp_path) as it:
            it.large.cancel()
            await asyncio.gather(it.large, return_exceptions=True)
            behind = it.insert(rows_from(2000, 1))
            it.let_on()
            assert await behind == range(3 + LARGE, 4 + LARGE)
            assert values_at(it.table, live_keys(it.table)).tolist()[3:] == [*range(LARGE), 2000]

    run(test)


def test_a_repeat_that_comes_meanwhile_gets_the_same_keys(tmp_path: Path) -> None:
    async def test() -> None:
        async with held(tmp_path, rows_from(0, 100), WRITER, large=100) as it:
            repeat = it.insert(rows_from(0, 100), WRITER)
            following = it.insert(rows_from(100, 100), WriterStamp(WRITER.writer_id, 2))
            await asyncio.sleep(0)
            it.large.cancel()
            it.let_on()
            assert await repeat == range(3, 103)
            assert await following == range(103, 203)
            assert (it.table.inserted, it.table.figures.now().repeated_inserts) == (203, 1)

    run(test)


def test_a_reset_waits_for_it_and_removes_its_rows_too(tmp_path: Path) -> None:
    async def test() -> None:
        async with held(tmp_path) as it:
            before, reset = (
                it.insert(rows_from(2000, 2)),
                asyncio.create_task(it.catalog.reset(it.catalog.lease("t"), Caller())),
            )
            await asyncio.sleep(0)
            behind = it.insert(rows_from(3000, 2))
            await asyncio.sleep(0)
            assert it.table.size == 3, "nothing is removed before its turn"
            it.let_on()
            assert (len(await it.large), len(await before), await reset) == (LARGE, 2, 3 + LARGE + 2)
            await behind
            assert values_at(it.table, live_keys(it.table)).tolist() == [3000, 3001]
            check_table(it.table)

    run(test)


def test_after_a_reset_the_rate_limiter_is_asked_again(tmp_path: Path) -> None:
    """Draws had allowed more rows than an empty table accepts at a time."""
    rows = rows_from(0, LARGE * 5 // 2)
    limit = RateLimit(1, 1.0, -2.0 * LARGE, LARGE / 2)

    async def test() -> None:
        catalog = catalog_at(tmp_path, checked=True)
        table, _ = await catalog.create(TableConfig("t", WHOLE, capacity=CAPACITY, rate_limit=limit))
        await catalog.lease("t").admission.insert(Caller(), rows_from(1000, 3), None, None)
        await catalog.lease("t").admission.draw(Caller(), 2 * LARGE + 3, 0)
        reset = asyncio.create_task(catalog.reset(catalog.lease("t"), Caller()))
        while not catalog.lease("t").admission.is_storing:
            await asyncio.sleep(0)
        with pytest.raises(RequestError, match="at most"):
            await catalog.lease("t").admission.insert(Caller(), rows, None, None)
        assert (await reset, table.size, table.inserted) == (3, 0, 3)
        assert await catalog.lease("t").admission.insert(Caller(), rows_from(7, 3), None, 0) == range(3, 6)
        catalog.close()

    run(test)


def test_a_drop_waits_for_it_and_sends_those_behind_it_away(tmp_path: Path) -> None:
    async def test() -> None:
        async with held(tmp_path) as it:
            behind = it.insert(rows_from(2000, 2))
            await asyncio.sleep(0)
            drop = asyncio.create_task(it.catalog.drop("t", b""))
            with pytest.raises(RequestError, match="no table"):
                await behind
            assert (it.table.directory.folder.is_dir(), drop.done()) == (True, False)
            it.let_on()
            assert len(await it.large) == LARGE
            await drop
            assert list((tmp_path / "tables").iterdir()) == []

    run(test)


def test_one_that_finds_no_space_changes_nothing_and_lets_others_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise NoSpaceError(errno.ENOSPC, "full")

    async def test() -> None:
        catalog = catalog_at(tmp_path)
        table, _ = await catalog.create(TableConfig("t", WHOLE, capacity=CAPACITY))
        with monkeypatch.context() as patch:
            patch.setattr(RowStore, "reserve", full)
            with pytest.raises(RequestError, match="no space left"):
                await catalog.lease("t").admission.insert(Caller(), rows_from(0, LARGE), None, None)
        assert (table.inserted, table.write_horizon) == (0, 0)
        assert await catalog.lease("t").admission.insert(Caller(), rows_from(0, 2), None, None) == range(2)
        check_table(table)
        catalog.close()

    run(test)


def stuck(it: Held, rows: NewRows, wait_s: float | None, caller: Caller | None = None) -> asyncio.Task[range]:
    """An insert behind the large one."""
    return asyncio.create_task(it.catalog.lease("t").admission.insert(caller or Caller(), rows, None, wait_s))


async def refusal_of(call: asyncio.Task[range]) -> tuple[str, dict[str, str]]:
    with pytest.raises(RequestError) as refusal:
        await asyncio.wait_for(call, 10)
    return replay_pb2.ErrorReason.Name(refusal.value.reason).removeprefix("ERROR_REASON_"), refusal.value.metadata


@pytest.mark.parametrize("backend", ["uniform", "fifo"])
def test_who_waits_behind_it_waits_no_longer_than_asked(tmp_path: Path, backend: str) -> None:
    async def test() -> None:
        async with held(tmp_path, backend=backend) as it:
            reason, fields = await refusal_of(stuck(it, rows_from(0, 2), 0.01))
            assert (reason, fields["waited_for"], fields["needed"]) == ("WAITED_TOO_LONG", "turn", "1")
            reason, fields = await refusal_of(stuck(it, rows_from(0, 2), 0))
            assert (reason, fields["waited_for"]) == ("LIMITED", "turn")
            it.catalog.limits.longest_s = 0.01
            assert (await refusal_of(stuck(it, rows_from(0, 2), None)))[0] == "WAITED_TOO_LONG"
            it.let_on()
            await it.large
            assert it.table.inserted == 3 + LARGE, "refused inserts have no effect"

    run(test)


def test_who_waits_behind_it_counts_as_waiting(tmp_path: Path) -> None:
    async def test() -> None:
        async with held(tmp_path) as it:
            row = WHOLE.row_bytes
            it.catalog.limits.calls = Budget("waiting calls", "a setting", 4, 0.5)
            it.catalog.limits.bytes_ = Budget("bytes of waiting inserts", "a setting", 20 * row, 0.5)
            first, second = stuck(it, rows_from(0, 5), None), stuck(it, rows_from(5, 5), None)
            await asyncio.sleep(0)
            reason, fields = await refusal_of(stuck(it, rows_from(10, 1), None))
            assert (reason, fields["bound"]) == ("TOO_LARGE", "bytes of waiting inserts, of one caller")
            first.cancel()
            await asyncio.sleep(0)
            third = stuck(it, rows_from(10, 1), None)
            await asyncio.sleep(0)
            reason, fields = await refusal_of(stuck(it, rows_from(11, 1), None))
            assert (reason, fields["bound"]) == ("TOO_LARGE", "waiting calls, of one caller")
            (wait,) = it.catalog.waits(it.table)
            assert (wait.calls, wait.lack.waited_for, wait.lack.needed) == (2, "turn", 1)
            assert it.table.figures.now().waiting_inserts == 2
            it.let_on()
            assert [len(await each) for each in (it.large, second, third)] == [LARGE, 5, 1]
            assert (it.catalog.limits.calls.total, it.catalog.limits.bytes_.total) == (0, 0)

    run(test)


class Revocable(Caller):
    """A caller whose token can be revoked during a wait."""

    def __init__(self) -> None:
        super().__init__("revocable")
        self.end: Callable[[RequestError], None] = lambda _: None

    @contextmanager
    def while_valid(self, end: Callable[[RequestError], None]) -> Iterator[None]:
        """See `Caller`."""
        self.end = end
        yield


def test_who_waits_behind_it_ends_with_its_token(tmp_path: Path) -> None:
    async def test() -> None:
        async with held(tmp_path) as it:
            caller = Revocable()
            insert = stuck(it, rows_from(0, 2), None, caller)
            await asyncio.sleep(0)
            caller.end(errors.unauthenticated("revoked"))
            assert (await refusal_of(insert))[0] == "UNAUTHENTICATED"
            it.let_on()
            await it.large
            assert it.table.inserted == 3 + LARGE

    run(test)


@pytest.mark.parametrize("turns", range(6))
def test_a_queue_never_holds_more_than_its_capacity(tmp_path: Path, turns: int) -> None:
    """A large insert ends; some turns of the event loop later, a draw makes room for the large insert that follows."""
    capacity = 8

    async def test() -> None:
        catalog = catalog_at(tmp_path, large=3)
        table, _ = await catalog.create(TableConfig("t", WHOLE, capacity=capacity, backend="fifo"))
        lines = catalog.lease("t").admission

        async def draw(count: int) -> None:
            await lines.draw(Caller(), count, math.inf)
            draw_batch(table, Draw(count, beta=1.0))
            lines.changed()

        async def insert(first: int, count: int) -> int:
            return len(await lines.insert(Caller(), rows_from(first, count), None, None))

        for first in range(0, capacity, 2):
            await insert(first, 2)
        inserts = [asyncio.create_task(insert(8, 4)), asyncio.create_task(insert(12, 4))]
        await asyncio.sleep(0)
        await draw(4)
        inserts += [asyncio.create_task(insert(16, 2)), asyncio.create_task(insert(18, 3))]
        while table.inserted < 12:
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        for count in (4, 3, 4):
            await draw(count)
            for _ in range(10):
                await asyncio.sleep(0)
                assert table.size <= capacity
        assert await asyncio.gather(*inserts) == [4, 4, 2, 3]
        catalog.close()

    run(test)


# Arbitrary sequences of calls, and their required results.

STAMPED = st.tuples(st.just("stamped"), st.integers(1, 8))
PLAIN = st.tuples(st.just("plain"), st.integers(1, 64))
OTHERS = st.tuples(st.sampled_from(["draw", "update", "reset", "repeat", "hang up"]), st.just(1))
PAUSE = st.tuples(st.just("pause"), st.integers(1, 4))
BACKENDS = st.sampled_from(sorted(backends.BACKENDS))


class Calls:
    """Calls of a small table with slow inserts, and their results."""

    def __init__(self, catalog: Catalog, table: Table) -> None:
        self.catalog = catalog
        self.table = table
        self.sequence = 0
        self.begun: list[tuple[asyncio.Task[range], int, int]] = []
        self.drawn: dict[int, int] = {}
        self.numbers = 0
        self.last = (0, 0)
        self.plain: asyncio.Task[range] | None = None

    def insert(self, count: int, stamp: WriterStamp | None) -> asyncio.Task[range]:
        """Start an insert of unique rows."""
        self.numbers += count
        return self._begin(self.numbers - count, count, stamp)

    def _begin(self, first: int, count: int, stamp: WriterStamp | None) -> asyncio.Task[range]:
        call = asyncio.create_task(
            self.catalog.lease("t").admission.insert(Caller(), rows_from(first, count), stamp, None)
        )
        self.begun.append((call, first, count))
        return call

    async def do(self, what: str, count: int) -> None:
        """Apply one operation."""
        if what == "plain":
            self.plain = self.insert(count, None)
        elif what == "stamped":
            self.sequence += 1
            self.last = (self.numbers, count)
            self.insert(count, WriterStamp(WRITER.writer_id, self.sequence))
        elif what == "repeat" and self.sequence:
            self._begin(*self.last, WriterStamp(WRITER.writer_id, self.sequence))
        elif what == "hang up" and self.plain is not None:
            self.plain.cancel()
        elif what == "draw" and self.table.size:
            keys = draw_batch(self.table, Draw(16, beta=1.0)).keys
            assert ((self.table.oldest <= keys) & (keys < self.table.inserted)).all()
            self.drawn.update(zip(keys.tolist(), values_at(self.table, keys).tolist(), strict=True))
        elif what == "update":
            keys = np.arange(self.table.oldest, self.table.inserted + 5)
            assert self.table.update(keys, np.ones(len(keys)))[0] == self.table.size
        elif what == "reset":
            inserted = self.table.inserted
            await self.catalog.reset(self.catalog.lease("t"), Caller())
            assert self.table.oldest >= inserted  # inserts that waited for the reset may have run since
        else:
            for _ in range(count):
                await asyncio.sleep(0)

    async def check(self) -> None:
        """Check that every acknowledged row has one key, and is intact while live."""
        await asyncio.gather(*(task for task, _, _ in self.begun), return_exceptions=True)
        await self.catalog.inserts_ended()
        number_of: dict[int, int] = {}
        for task, first, count in self.begun:
            if not task.cancelled():
                keys = task.result()
                assert len(keys) == count
                for key, number in zip(keys, range(first, first + count), strict=True):
                    assert number_of.setdefault(key, number) == number, "two rows have one key"
        values = values_at(self.table, live_keys(self.table))
        assert len(set(values.tolist())) == len(values), "a row was inserted twice"
        for key, value in [*zip(live_keys(self.table).tolist(), values.tolist(), strict=True), *self.drawn.items()]:
            assert number_of.get(key, value) == value
        check_table(self.table)


@given(
    calls=st.lists(st.one_of(PLAIN, STAMPED, OTHERS, PAUSE), min_size=1, max_size=30),
    backend=BACKENDS,
    capacity=st.sampled_from([20, 500]),
)
@settings(max_examples=40)
def test_any_calls_at_once_tear_lose_and_double_no_row(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[str, int]], backend: str, capacity: int
) -> None:
    async def test() -> None:
        catalog = Catalog(Root.durable(tmp_path_factory.mktemp("data")))
        table, _ = await catalog.create(TableConfig("t", WHOLE, capacity=capacity, backend=backend))
        it = Calls(catalog, table)
        for what, count in calls:
            await it.do(what, count)
        await it.check()
        catalog.close()

    run(test)
