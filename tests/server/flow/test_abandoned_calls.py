"""Long work is not begun for a call that was canceled, and callers take turns."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from replay_proto.schema import Column, Schema
from replay_proto.v1 import replay_pb2
from replay_server import errors
from replay_server.catalog import Catalog
from replay_server.errors import RequestError
from replay_server.flow.budgets import Budget
from replay_server.flow.turns import OneByOne
from replay_server.storage.root import Root
from replay_server.storage.table_config import TableConfig

from tests.support.caller import Caller, table_config
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]
Connect = Callable[[ServerProcess], Caller]
ABANDONED = 40


def one_by_one(most: int = 100) -> OneByOne:
    return OneByOne(Budget("waiting calls", "max_waiting_calls of the server", most, 1.0))


def test_callers_take_turns() -> None:
    order: list[str] = []

    async def work(name: str) -> None:
        await asyncio.sleep(0)
        order.append(name)

    async def play() -> None:
        works = one_by_one()
        await asyncio.gather(*(works.do(name, lambda name=name: work(name)) for name in "aaaabbc"))  # type: ignore[misc]

    asyncio.run(play())
    assert "".join(order) == "aabcaba", "the first worked at once; then one of each"


def test_work_of_a_call_that_was_canceled_in_line_is_not_begun_and_begun_work_ends() -> None:
    begun: list[str] = []
    ended: list[str] = []

    async def play() -> None:
        works, goes_on = one_by_one(), asyncio.Event()

        async def work(name: str) -> None:
            begun.append(name)
            await goes_on.wait()
            ended.append(name)

        calls = [asyncio.create_task(works.do("caller", lambda name=name: work(name))) for name in "ab"]  # type: ignore[misc]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        goes_on.set()
        await works.do("caller", lambda: work("c"))
        await works.ended()

    asyncio.run(asyncio.wait_for(play(), 10))
    assert begun == ended == ["a", "c"]


def test_a_call_that_is_canceled_when_its_turn_has_come_passes_it_on() -> None:
    async def play() -> None:
        works, goes_on = one_by_one(), asyncio.Event()

        async def work() -> None:
            await goes_on.wait()

        first, second, third = (asyncio.create_task(works.do(name, work)) for name in "abc")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        goes_on.set()
        first.add_done_callback(lambda _: second.cancel())
        await third
        assert second.cancelled()

    asyncio.run(asyncio.wait_for(play(), 10))


@pytest.mark.parametrize(
    ("error", "is_left", "logged"),
    [
        (errors.table_not_found("t"), True, 0),
        (MemoryError(), True, 1),
        (OSError(), False, 0),
    ],
    ids=["refused", "failed", "awaited"],
)
def test_a_failure_of_work_is_logged_if_no_call_learns_of_it(
    caplog: pytest.LogCaptureFixture, error: Exception, is_left: bool, logged: int
) -> None:
    async def play() -> None:
        works, goes_on = one_by_one(), asyncio.Event()

        async def work() -> None:
            await goes_on.wait()
            raise error

        call = asyncio.create_task(works.do("caller", work))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if is_left:
            call.cancel()
            await asyncio.wait([call])
        goes_on.set()
        await works.ended()
        await asyncio.wait([call])
        assert call.cancelled() or call.exception() is error

    asyncio.run(asyncio.wait_for(play(), 10))
    gc.collect()  # a task whose error nobody has seen says so when it is collected
    assert len(caplog.records) == logged


def test_so_many_may_wait() -> None:
    async def play() -> None:
        works = one_by_one(most=1)

        async def work() -> None:
            await asyncio.sleep(0)

        calls = [asyncio.create_task(works.do("caller", work)) for _ in range(3)]
        await asyncio.wait(calls)
        refused = [call.exception() for call in calls]
        assert [type(refusal) for refusal in refused] == [type(None), type(None), RequestError]

    asyncio.run(asyncio.wait_for(play(), 10))


def test_tables_are_neither_made_nor_dropped_for_callers_who_hung_up(tmp_path: Path) -> None:
    def config(name: str) -> TableConfig:
        return TableConfig.from_proto(table_config(name, schema=Schema({"x": Column("int64")})))

    async def play() -> list[str]:
        catalog = Catalog(Root.in_memory(tmp_path))
        await catalog.create(config("kept"))
        calls: list[asyncio.Task[Any]] = [
            asyncio.create_task(catalog.create(config(f"made-{number}"), client="a")) for number in range(5)
        ]
        calls.append(asyncio.create_task(catalog.drop("kept", b"", client="a")))
        for _ in range(3):
            await asyncio.sleep(0)
        for each in calls:
            each.cancel()
        await catalog.create(config("last"), client="b")
        names = [table.name for table in catalog]
        catalog.close()
        return names

    assert asyncio.run(play()) == ["kept", "last", "made-0"]


def test_checkpoints_are_not_written_for_callers_who_hung_up(
    start_server: StartServer, call: Connect, tmp_path: Path
) -> None:
    caller = call(start_server("--memory-dir", str(tmp_path), "--checkpoint-dir", str(tmp_path / "checkpoints")))
    table = caller.create(schema=Schema({"x": Column("uint8", (1 << 20,))}), capacity=20)
    for _ in range(4):
        insertion = replay_pb2.Insertion(row_count=5)
        caller.stub.Insert(replay_pb2.InsertRequest(table=table.name, insertion=insertion, rows=bytes(5 << 20)))
    request = replay_pb2.CheckpointRequest(series="series", keep=1)
    begun = [caller.stub.Checkpoint.future(request) for _ in range(ABANDONED)]
    wait_until(lambda: caller.method("Checkpoint").active >= ABANDONED // 2, "half of them wait")
    for each in begun:
        each.cancel()
    number = int(caller.checkpoint(series="series").name.rpartition("-")[2])
    assert number <= ABANDONED // 2
