"""Gathers from queues in worker threads: each row is returned once, in order, or stays."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_proto.framing import NO_ROWS, Framed
from replay_proto.v1 import replay_pb2
from replay_server.auth import Caller
from replay_server.catalog import Catalog
from replay_server.errors import RequestError
from replay_server.rpc.call import Call
from replay_server.rpc.handlers import gathering
from replay_server.rpc.handlers.sampling import SamplingHandlers
from replay_server.storage.root import Root
from replay_server.storage.table_config import TableConfig
from replay_server.table.table import NewRows, Table

from tests.support.caller import make_draw
from tests.support.inserting import insert_all
from tests.support.rows import WHOLE, columns_of

ROWS = 10


class Gathers:
    """Gathers in worker threads that pause until released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.may_go_on = threading.Semaphore(0), threading.Semaphore(0)
        gather = gathering._gather

        def held(*arguments: Any) -> bytes:
            self.began.release()
            assert self.may_go_on.acquire(timeout=30)
            return gather(*arguments)

        monkeypatch.setattr(gathering, "GATHERED_ON_LOOP_BYTES", 0)
        monkeypatch.setattr(gathering, "_gather", held)

    async def wait_for_one(self) -> None:
        """Wait until a gather has started."""
        assert await asyncio.to_thread(self.began.acquire, timeout=30)


@pytest.fixture
def gathers(monkeypatch: pytest.MonkeyPatch) -> Gathers:
    return Gathers(monkeypatch)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    root = Root.in_memory(tmp_path)
    made = Catalog(root)
    yield made
    made.close()
    root.close()


async def make_queue(catalog: Catalog) -> Table:
    """A queue of 30 rows that have their keys as values."""
    table, _ = await catalog.create(TableConfig("queue", WHOLE, capacity=100, backend="fifo"))
    insert_all(table, NewRows(columns_of(np.arange(3 * ROWS)), 3 * ROWS))
    return table


def sample(catalog: Catalog, table: Table, reader: replay_pb2.ReaderStamp | None = None) -> asyncio.Task[bytes]:
    """Start to draw a batch."""
    request = replay_pb2.SampleRequest(table=table.name, draw=make_draw(ROWS), reader=reader)
    handlers = SamplingHandlers(catalog, same_host=False)
    return asyncio.create_task(handlers.sample(Framed(request, NO_ROWS), Call(Caller("caller"))))


def keys_of(answer: bytes) -> list[int]:
    found: list[int] = np.frombuffer(replay_pb2.SampleResponse.FromString(answer).batch.keys, np.int64).tolist()
    return found


def test_draws_take_what_lies_behind_those_that_are_being_gathered(catalog: Catalog, gathers: Gathers) -> None:
    async def play() -> None:
        table = await make_queue(catalog)
        draws = [sample(catalog, table) for _ in range(3)]
        await gathers.wait_for_one()
        assert table.size == 3 * ROWS, "nothing has left the queue yet"
        for _ in draws:
            gathers.may_go_on.release()
        answers = await asyncio.gather(*draws)
        assert [keys_of(answer) for answer in answers] == [
            list(range(first, first + ROWS)) for first in range(0, 3 * ROWS, ROWS)
        ]
        assert (table.size, table.figures.now().sampled) == (0, 3 * ROWS)

    asyncio.run(play())


def test_rows_whose_caller_hangs_up_while_they_are_gathered_stay(catalog: Catalog, gathers: Gathers) -> None:
    async def play() -> None:
        table = await make_queue(catalog)
        leaves = sample(catalog, table)
        await gathers.wait_for_one()
        leaves.cancel()
        await asyncio.gather(leaves, return_exceptions=True)
        next_one = sample(catalog, table)
        gathers.may_go_on.release()
        gathers.may_go_on.release()
        assert keys_of(await next_one) == list(range(ROWS))

    asyncio.run(play())


@pytest.mark.parametrize("on_loop", [False, True])
def test_a_repeated_draw_whose_rows_are_overwritten_while_they_are_gathered_gets_newer_ones(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, on_loop: bool
) -> None:
    """Large inserts store their rows in a worker thread, even while the event loop gathers others."""

    async def play() -> None:
        table = await make_queue(catalog)
        reader = replay_pb2.ReaderStamp(reader_id=b"a reader's id: 1", sequence=1)
        assert keys_of(await sample(catalog, table, reader)) == list(range(ROWS))
        gather = gathering._joined if on_loop else gathering._gather

        def overtaken(*arguments: Any) -> bytes:
            if table.inserted == 3 * ROWS:
                for _ in range(table.config.slots // ROWS):
                    insert_all(table, NewRows(columns_of(np.arange(table.inserted, table.inserted + ROWS)), ROWS))
            return gather(*arguments)

        monkeypatch.setattr(gathering, "GATHERED_ON_LOOP_BYTES", 1 << 30 if on_loop else 0)
        monkeypatch.setattr(gathering, gather.__name__, overtaken)
        assert keys_of(await sample(catalog, table, reader)) == list(range(ROWS, 2 * ROWS))

    asyncio.run(play())


def test_a_draw_is_refused_if_its_queue_is_reset_while_it_is_gathered(catalog: Catalog, gathers: Gathers) -> None:
    async def play() -> None:
        table = await make_queue(catalog)
        draw = sample(catalog, table)
        await gathers.wait_for_one()
        table.reset()
        gathers.may_go_on.release()
        with pytest.raises(RequestError, match="reset"):
            await draw
        insert_all(table, NewRows(columns_of(np.arange(ROWS)), ROWS))
        gathers.may_go_on.release()
        assert keys_of(await sample(catalog, table)) == list(range(3 * ROWS, 4 * ROWS))

    asyncio.run(play())


def test_a_draw_by_priority_is_refused_if_its_table_is_reset_while_it_is_gathered(
    catalog: Catalog, gathers: Gathers
) -> None:
    async def play() -> None:
        table, _ = await catalog.create(TableConfig("table", WHOLE, capacity=100))
        insert_all(table, NewRows(columns_of(np.arange(ROWS)), ROWS))
        draw = sample(catalog, table)
        await gathers.wait_for_one()
        table.reset()
        gathers.may_go_on.release()
        with pytest.raises(RequestError, match="reset"):
            await draw
        assert table.figures.now().sampled == 0

    asyncio.run(play())
