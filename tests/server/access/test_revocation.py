"""Waiting calls and open streams end when their token is removed or expires."""

from __future__ import annotations

import asyncio
import math
import queue
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from replay_client.security import token_metadata
from replay_proto.v1 import replay_pb2, replay_pb2_grpc
from replay_server import errors
from replay_server.auth import Caller
from replay_server.catalog import Catalog
from replay_server.errors import RequestError
from replay_server.storage.root import Root
from replay_server.storage.table_config import TableConfig
from replay_server.table.table import NewRows

from tests.support.access import token_entry
from tests.support.caller import make_draw, table_config
from tests.support.deadlines import wait_until
from tests.support.flow import rate_limiter
from tests.support.refusals import refusal_in
from tests.support.rows import WHOLE, columns_of, rows_of
from tests.support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]
EVERY = ["read", "write", "admin"]
STAYS, GOES = (f"{name}-{'x' * 20}" for name in ("stays", "goes"))
LATER = "2999-01-01T00:00:00Z"
FOR_EVER_S = 600.0
SOON_S = 30.0
"""Well above the duration of a call."""
ROW = rows_of(np.array([7]))


class Calls:
    """Calls with one token; waiting ones never end by themselves."""

    def __init__(self, server: ServerProcess, token: str) -> None:
        self._channel = grpc.insecure_channel(server.address)
        self.stub = replay_pb2_grpc.ReplayServiceStub(self._channel)
        self._metadata = token_metadata(token)
        self._streams: list[queue.SimpleQueue[Any]] = []

    def close(self) -> None:
        for requests in self._streams:
            requests.put(None)
        self._channel.close()

    def create(self, name: str, **config: object) -> None:
        request = replay_pb2.CreateTableRequest(config=table_config(name, **config))
        self.stub.CreateTable(request, metadata=self._metadata)

    def insert(self, table: str, wait_s: float = FOR_EVER_S) -> Callable[[], object]:
        insertion = replay_pb2.Insertion(row_count=1, wait_s=wait_s)
        request = replay_pb2.InsertRequest(table=table, insertion=insertion, rows=ROW)
        call: Callable[[], object] = self.stub.Insert.future(request, metadata=self._metadata, timeout=SOON_S).result
        return call

    def draw(self, table: str) -> Callable[[], object]:
        request = replay_pb2.SampleRequest(table=table, draw=make_draw(1, wait_s=FOR_EVER_S))
        call: Callable[[], object] = self.stub.Sample.future(request, metadata=self._metadata, timeout=SOON_S).result
        return call

    def stream(self, method: str, request: object) -> Callable[[], object]:
        """Send one request on a stream that stays open; return a function that receives the next reply."""
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        requests.put(request)
        self._streams.append(requests)
        answers = getattr(self.stub, method)(iter(requests.get, None), metadata=self._metadata, timeout=SOON_S)
        answer: Callable[[], object] = answers.__next__
        return answer

    def stats(self, table: str) -> replay_pb2.TableStats:
        return self.stub.Stats(replay_pb2.StatsRequest(table=table), metadata=self._metadata).tables[0]


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return tmp_path / "tokens.toml"


def write_tokens(path: Path, *, goes_at: str) -> None:
    """Write a token without expiry, and one that expires."""
    path.write_text(token_entry("stays", STAYS, EVERY) + token_entry("goes", GOES, EVERY, expires=goes_at))


@pytest.fixture
def calls_of(start_server: StartServer, tokens: Path) -> Iterator[Callable[[str], Calls]]:
    """Creates calls with a token to one server, which is started for the first of them."""
    made: list[Calls] = []
    servers: list[ServerProcess] = []

    def calls_of(token: str) -> Calls:
        if not servers:
            servers.append(start_server("--tokens", str(tokens)))
        made.append(Calls(servers[0], token))
        return made[-1]

    yield calls_of
    for calls in made:
        calls.close()


def reason_of(call: Callable[[], object]) -> str:
    """Reason of a call's refusal."""
    with pytest.raises(grpc.RpcError) as error:
        call()
    return refusal_in(error.value).reason


def test_whatever_waits_ends_when_its_token_is_taken_away(calls_of: Callable[[str], Calls], tokens: Path) -> None:
    write_tokens(tokens, goes_at=LATER)
    stays, goes = calls_of(STAYS), calls_of(GOES)
    stays.create("empty")
    stays.create("queue", backend="fifo")
    stays.create("plain")
    stays.create("full", rate_limiter=rate_limiter(1, 1.0, 2.0))
    allowed = 0
    while stays.stats("full").table.inserted == allowed:
        allowed += 1
        try:
            stays.insert("full", wait_s=0.0)()
        except grpc.RpcError:
            break
    before = stays.stats("full").table.inserted

    insertion = replay_pb2.Insertion(row_count=1, sequence=1)
    write = replay_pb2.WriteRequest(table="plain", writer_id=bytes(16), insertion=insertion, rows=ROW)
    idle_writer = goes.stream("Write", write)
    assert idle_writer()
    idle_learner = goes.stream("Learn", replay_pb2.LearnRequest(table="plain", draw=make_draw(1)))
    assert idle_learner()
    waiting_learner = goes.stream("Learn", replay_pb2.LearnRequest(table="empty", draw=make_draw(1, wait_s=FOR_EVER_S)))
    ended = [goes.draw("empty"), goes.draw("queue"), goes.insert("full"), waiting_learner, idle_writer, idle_learner]
    wait_until(lambda: [stays.stats(name).waiting for name in ("empty", "queue", "full")] == [2, 1, 1], "all wait")
    kept = [stays.draw("empty"), stays.draw("queue"), stays.insert("full")]
    wait_until(lambda: [stays.stats(name).waiting for name in ("empty", "queue", "full")] == [3, 2, 2], "others, too")

    tokens.write_text(token_entry("stays", STAYS, EVERY))
    assert [reason_of(call) for call in ended] == ["UNAUTHENTICATED"] * len(ended)
    assert [stays.stats(name).waiting for name in ("empty", "queue", "full")] == [1, 1, 1]
    for go_on in (stays.insert("empty"), stays.insert("queue"), stays.draw("full")):
        assert go_on()
    assert all(call() for call in kept)
    assert stays.stats("full").table.inserted == before + 1


def test_what_waits_ends_when_its_token_expires(calls_of: Callable[[str], Calls], tokens: Path) -> None:
    write_tokens(tokens, goes_at=LATER)
    stays = calls_of(STAYS)
    stays.create("empty")
    call = calls_of(GOES).draw("empty")
    wait_until(lambda: stays.stats("empty").waiting == 1, "it waits")
    soon = datetime.now(UTC) + timedelta(seconds=3)
    write_tokens(tokens, goes_at=soon.isoformat())
    assert reason_of(call) == "UNAUTHENTICATED"
    assert datetime.now(UTC) >= soon


@pytest.mark.parametrize("change", ["rights", "tables"])
def test_what_waits_ends_when_its_token_loses_the_right(
    calls_of: Callable[[str], Calls], tokens: Path, change: str
) -> None:
    write_tokens(tokens, goes_at=LATER)
    stays, goes = calls_of(STAYS), calls_of(GOES)
    stays.create("empty")
    learn = replay_pb2.LearnRequest(table="empty", draw=make_draw(1, wait_s=FOR_EVER_S))
    ended = [goes.draw("empty"), goes.stream("Learn", learn)]
    wait_until(lambda: stays.stats("empty").waiting == 2, "both wait")
    left = {"rights": (["write"], ["*"]), "tables": (EVERY, ["other"])}[change]
    tokens.write_text(token_entry("stays", STAYS, EVERY) + token_entry("goes", GOES, *left))
    assert [reason_of(call) for call in ended] == ["PERMISSION_DENIED"] * 2
    assert stays.insert("empty")()
    assert stays.stats("empty").table.size == 1


class Revoked(Caller):
    """A caller whose token was just revoked, before the server has noticed."""

    def check_valid(self) -> None:
        raise errors.unauthenticated("the token of this call is no longer valid")


def test_a_draw_that_has_waited_takes_nothing_for_a_token_that_is_valid_no_more(tmp_path: Path) -> None:
    root = Root.in_memory(tmp_path)
    catalog = Catalog(root)

    async def play() -> None:
        table, _ = await catalog.create(TableConfig("queue", WHOLE, capacity=10, backend="fifo"))

        async def draw(caller: Caller) -> None:
            await catalog.lease("queue").admission.draw(caller, 1, math.inf)

        first, second = asyncio.create_task(draw(Revoked())), asyncio.create_task(draw(Caller()))
        while table.figures.now().waiting < 2:
            await asyncio.sleep(0)
        table.insert(NewRows(columns_of(np.arange(1)), 1), None)
        catalog.lease("queue").admission.changed()
        with pytest.raises(RequestError, match="no longer valid"):
            await asyncio.wait_for(first, SOON_S)
        await asyncio.wait_for(second, SOON_S)

    try:
        asyncio.run(play())
    finally:
        catalog.close()
        root.close()
