"""Shared budgets: no caller can exhaust them, large requests wait, and every call releases its share when it ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st
from replay_proto.schema import Column, Schema
from replay_proto.v1 import replay_pb2, replay_pb2_grpc
from replay_server.auth import THIS_HOST, of_peer
from replay_server.flow.budgets import SMALL_BYTES, Budget, QueuedBudget
from replay_server.rpc.over_grpc.standard_services import MOST_WATCHING

from tests.support.access import ALL, MINE, OTHER, write_usual_tokens
from tests.support.caller import CalledTable, Caller, LearnStream, make_draw, table_config
from tests.support.deadlines import wait_until
from tests.support.refusals import refused
from tests.support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]
Call = Callable[[ServerProcess], Caller]

Metadata = tuple[tuple[str, str | bytes], ...]
WIDE = Schema({"x": Column("uint8", (10_000,))})
ROWS = 100
"""Rows of the schema above that make a reply of a megabyte."""


@pytest.mark.parametrize(
    ("peer", "identity"),
    [
        ("ipv4:127.0.0.1:52100", THIS_HOST),
        ("ipv6:%5B::1%5D:52100", THIS_HOST),
        ("ipv6:[::ffff:127.0.0.1]:1", THIS_HOST),
        ("unix:", THIS_HOST),
        ("unix:140", THIS_HOST),
        ("", THIS_HOST),
        ("ipv4:10.0.0.7:52100", "host 10.0.0.7"),
        ("ipv6:%5B2001:db8::1%5D:52100", "host 2001:db8::/64"),
        ("ipv6:[2001:db8::ffff:2]:7", "host 2001:db8::/64"),
        ("ipv6:[::ffff:10.0.0.7]:7", "host 10.0.0.7"),
    ],
)
def test_a_peer_is_its_host(peer: str, identity: str) -> None:
    assert of_peer(peer) == identity


# The arithmetic.


@dataclass
class _Taker:
    """Acquires a share, keeps it until told to release it, and may be canceled at any time."""

    caller: str
    amount: int
    let_go: asyncio.Event = field(default_factory=asyncio.Event)
    has: bool = False
    task: asyncio.Task[None] | None = None

    async def run(self, budget: QueuedBudget) -> None:
        if not budget.take_now(self.caller, self.amount):
            await budget.take_in_turn(self.caller, self.amount)
        self.has = True
        try:
            await self.let_go.wait()
        finally:
            self.has = False
            budget.give_back(self.caller, self.amount)


_AMOUNTS = st.sampled_from([0, 1, SMALL_BYTES, SMALL_BYTES + 1, 2 * SMALL_BYTES, 9 * SMALL_BYTES])
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.sampled_from("abc"), _AMOUNTS),
        st.tuples(st.sampled_from(["let go", "cancel"]), st.integers(0, 30), st.booleans()),
    ),
    max_size=40,
)


@given(_STEPS)
def test_a_budget_is_exact_and_lets_on_whoever_fits(steps: list[tuple[str, object, object]]) -> None:
    asyncio.run(_follow(steps))


async def _follow(steps: list[tuple[str, object, object]]) -> None:
    waiting = Budget("waiting calls", "", 1000, 1.0)
    budget = QueuedBudget("bytes", "", 16 * SMALL_BYTES, 0.5, waiting)
    takers: list[_Taker] = []
    for what, whom, more in steps:
        if what == "take":
            assert isinstance(whom, str)
            assert isinstance(more, int)
            taker = _Taker(whom, more)
            taker.task = asyncio.create_task(taker.run(budget))
            takers.append(taker)
        elif takers:
            assert isinstance(whom, int)
            taker = takers[whom % len(takers)]
            assert taker.task is not None
            taker.let_go.set() if what == "let go" else taker.task.cancel()
        if more is not False:  # sometimes several events happen in one turn of the loop
            await _settle()
            _check(budget, waiting, takers)
    for taker in takers:
        assert taker.task is not None
        taker.let_go.set()
    await _settle()
    await asyncio.gather(*(taker.task for taker in takers if taker.task is not None), return_exceptions=True)
    assert budget.total == waiting.total == 0
    assert [budget.holds(caller) for caller in "abc"] == [0, 0, 0]


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def _check(budget: QueuedBudget, waiting: Budget, takers: list[_Taker]) -> None:
    assert budget.total == sum(taker.amount for taker in takers if taker.has)
    lines = [taker for taker in takers if taker.task is not None and not taker.task.done() and not taker.has]
    assert waiting.total == len(lines)
    for caller in "abc":
        held = [taker.amount for taker in takers if taker.caller == caller and taker.has]
        assert budget.holds(caller) == sum(held)
        large = [amount for amount in held if amount > SMALL_BYTES]
        assert sum(held) <= 8 * SMALL_BYTES or len(large) <= 1
        waits = [taker.amount for taker in lines if taker.caller == caller]
        assert not waits or held, "whoever holds nothing goes on"
        assert not any(amount > SMALL_BYTES for amount in waits) or large, "the first large one goes on"


# A server.


@contextmanager
def stub_with(server: ServerProcess, token: str) -> Iterator[tuple[replay_pb2_grpc.ReplayServiceStub, Metadata]]:
    """A stub on a separate connection, and the metadata of its calls."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(server.address, options=options) as channel:
        yield replay_pb2_grpc.ReplayServiceStub(channel), (("authorization", f"Bearer {token}"),)


def sample_request(name: str, wait_s: float = 0.0, rows: int = 1) -> replay_pb2.SampleRequest:
    """A request for a draw."""
    return replay_pb2.SampleRequest(table=name, draw=make_draw(rows, wait_s=wait_s))


def make(server: ServerProcess, name: str, token: str, schema: Schema = WIDE, rows: int = ROWS) -> None:
    """Create a table with this token, and insert rows of zeros."""
    with stub_with(server, token) as (stub, metadata):
        stub.CreateTable(
            replay_pb2.CreateTableRequest(config=table_config(name, schema=schema, capacity=6400)), metadata=metadata
        )
        if rows:
            insertion = replay_pb2.Insertion(row_count=rows)
            stub.Insert(
                replay_pb2.InsertRequest(table=name, insertion=insertion, rows=bytes(rows * schema.row_bytes)),
                metadata=metadata,
            )


def test_one_caller_cannot_use_up_the_calls_that_wait(start_server: StartServer, tmp_path: Path) -> None:
    tokens = write_usual_tokens(tmp_path / "tokens.toml")
    server = start_server("--tokens", str(tokens), "--max-waiting-calls", "8")
    make(server, f"{MINE}empty", ALL, rows=0)
    make(server, "other-empty", OTHER, rows=0)
    with stub_with(server, ALL) as (stub, mine), stub_with(server, OTHER) as (other, theirs):
        calls = [stub.Sample.future(sample_request(f"{MINE}empty", 60.0), metadata=mine) for _ in range(4)]
        stats = replay_pb2.StatsRequest(table=f"{MINE}empty")
        wait_until(lambda: stub.Stats(stats, metadata=mine).tables[0].waiting == 4, "the first ones wait")
        with refused("TOO_LARGE", bound="waiting calls, of one caller", limit=4, got=5) as refusal:
            stub.Sample(sample_request(f"{MINE}empty", 60.0), metadata=mine)
        assert "max_waiting_calls" in refusal.metadata["setting"]
        assert "caller_share" in refusal.metadata["setting"]
        with refused("WAITED_TOO_LONG"):
            other.Sample(sample_request("other-empty", 0.05), metadata=theirs)
        for call in calls:
            call.cancel()
        wait_until(lambda: stub.Stats(stats, metadata=mine).tables[0].waiting == 0, "nobody waits")
        with refused("WAITED_TOO_LONG"):
            stub.Sample(sample_request(f"{MINE}empty", 0.05), metadata=mine)


def test_one_caller_cannot_use_up_the_streams(start_server: StartServer, tmp_path: Path) -> None:
    tokens = write_usual_tokens(tmp_path / "tokens.toml")
    server = start_server("--tokens", str(tokens), "--max-streams", "4")
    make(server, f"{MINE}table", ALL)
    make(server, "other-table", OTHER)

    over = Event()

    def learn(stub: replay_pb2_grpc.ReplayServiceStub, name: str, metadata: Metadata) -> None:
        def requests() -> Iterator[replay_pb2.LearnRequest]:
            yield replay_pb2.LearnRequest(table=name, draw=make_draw(1))
            over.wait()

        calls.append(stub.Learn(requests(), metadata=metadata))
        next(calls[-1])

    calls: list[Any] = []
    with (
        stub_with(server, ALL) as (stub, mine),
        stub_with(server, ALL) as (again, _),
        stub_with(server, OTHER) as (other, theirs),
    ):
        learn(stub, f"{MINE}table", mine)
        learn(again, f"{MINE}table", mine)
        with refused("TOO_LARGE", bound="streams, of one caller", limit=2, got=3):
            learn(again, f"{MINE}table", mine)
        learn(other, "other-table", theirs)
        over.set()


def _asks_and_stops(address: str, token: str, name: str, count: int) -> None:
    """Request large replies, and stop this process before they arrive."""
    with grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)]) as channel:
        stub, metadata = replay_pb2_grpc.ReplayServiceStub(channel), (("authorization", f"Bearer {token}"),)
        stub.DescribeTable(replay_pb2.DescribeTableRequest(table=name), metadata=metadata)
        calls = [stub.Sample.future(sample_request(name, rows=8 * ROWS), metadata=metadata) for _ in range(count)]
        os.kill(os.getpid(), signal.SIGSTOP)
        del calls


def test_replies_that_nobody_reads_are_few_and_hold_up_nobody_else(start_server: StartServer, tmp_path: Path) -> None:
    tokens = write_usual_tokens(tmp_path / "tokens.toml")
    server = start_server("--tokens", str(tokens), "--max-outgoing-mb", "32")
    make(server, f"{MINE}table", ALL)
    make(server, "other-table", OTHER)
    before = _peak_mb(server)
    attackers = [
        get_context("spawn").Process(target=_asks_and_stops, args=(server.address, ALL, f"{MINE}table", 30))
        for _ in range(2)
    ]
    for attacker in attackers:
        attacker.start()
    try:
        with stub_with(server, OTHER) as (other, theirs), stub_with(server, ALL) as (same, mine):
            for attacker in attackers:
                wait_until(lambda pid=attacker.pid: _state(pid) == "T", "it has stopped")  # type: ignore[misc]
            for _ in range(50):
                assert len(other.Sample(sample_request("other-table", rows=ROWS), metadata=theirs, timeout=30).rows)
            # It also does not delay small calls with the same token.
            same.Sample(sample_request(f"{MINE}table"), metadata=mine, timeout=10)
        assert _peak_mb(server) < before + 150
    finally:
        for attacker in attackers:
            attacker.kill()
            attacker.join()
    with stub_with(server, ALL) as (same, mine):
        same.Sample(sample_request(f"{MINE}table", rows=8 * ROWS), metadata=mine, timeout=30)


def _state(pid: int | None) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def _peak_mb(server: ServerProcess) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


@pytest.fixture
def narrow(start_server: StartServer) -> ServerProcess:
    """A server that builds large replies one after the other."""
    return start_server("--max-outgoing-mb", "1", "--caller-share", "1")


@pytest.mark.parametrize("backend", ["uniform", "fifo"])
def test_whatever_way_a_call_ends_its_reply_is_counted_no_more(narrow: ServerProcess, call: Call, backend: str) -> None:
    caller = call(narrow)
    table = caller.create(schema=WIDE, capacity=6400, backend=backend)
    insertion = replay_pb2.Insertion(row_count=ROWS)

    def fill() -> None:
        request = replay_pb2.InsertRequest(table=table.name, insertion=insertion, rows=bytes(ROWS * WIDE.row_bytes))
        caller.stub.Insert(request, timeout=30)

    def begin() -> Any:
        return caller.stub.Sample.future(sample_request(table.name, 30.0, ROWS), timeout=30)

    fill()
    caller.stub.Sample(sample_request(table.name, rows=ROWS))
    for _ in range(10):  # canceled at different moments
        fill()
        calls = [begin() for _ in range(3)]
        calls[0].cancel()
        with suppress(grpc.FutureTimeoutError, grpc.RpcError):
            calls[1].result(timeout=0.002)
        for each in calls:
            each.cancel()
    with Caller(narrow.address) as gone:  # closed
        for _ in range(3):
            gone.stub.Sample.future(sample_request(table.name, 30.0, ROWS), timeout=30)
    stream = LearnStream(table)
    fill()
    stream.send(draw=make_draw(ROWS))
    assert len(stream.receive().rows) == 1_000_000
    stream.send(draw=make_draw(ROWS))
    stream.call.cancel()
    waiting = [begin() for _ in range(3)]
    table.reset()
    for each in waiting:
        with suppress(grpc.RpcError):
            each.result()
    fill()
    assert len(caller.stub.Sample(sample_request(table.name, 10.0, ROWS), timeout=20).rows) == 1_000_000
    fill()
    wait_until(lambda: table.describe().size >= ROWS, "there are rows")
    assert len(caller.stub.Sample(sample_request(table.name, 10.0, ROWS), timeout=20).rows) == 1_000_000


def test_many_large_replies_of_one_caller_all_come(narrow: ServerProcess, call: Call) -> None:
    table: CalledTable = call(narrow).create(schema=WIDE, capacity=6400, backend="uniform")
    insertion = replay_pb2.Insertion(row_count=ROWS)
    request = replay_pb2.InsertRequest(table=table.name, insertion=insertion, rows=bytes(ROWS * WIDE.row_bytes))
    call(narrow).stub.Insert(request)
    futures = [call(narrow).stub.Sample.future(sample_request(table.name, rows=ROWS)) for _ in range(20)]
    assert {len(each.result(timeout=60).rows) for each in futures} == {1_000_000}
    assert np.isfinite(table.stats().total_mass)


@contextmanager
def _health_stub(server: ServerProcess) -> Iterator[health_pb2_grpc.HealthStub]:
    """A stub of the health service on a separate connection."""
    with grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield health_pb2_grpc.HealthStub(channel)


def test_health_is_watched_by_so_many(start_server: StartServer) -> None:
    server, each = start_server(), 64
    with ExitStack() as stack:
        stubs = [stack.enter_context(_health_stub(server)) for _ in range(MOST_WATCHING // 2 // each)]
        calls = [stub.Watch(health_pb2.HealthCheckRequest()) for stub in stubs for _ in range(each)]
        stub = stubs[0]
        assert {next(call).status for call in calls} == {health_pb2.HealthCheckResponse.SERVING}
        with pytest.raises(grpc.RpcError) as caught:
            next(stub.Watch(health_pb2.HealthCheckRequest()))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for call in calls[:2]:
            call.cancel()

        def is_told() -> bool:
            try:
                return bool(next(stub.Watch(health_pb2.HealthCheckRequest())))
            except grpc.RpcError:
                return False

        wait_until(is_told, "another one has its place")
