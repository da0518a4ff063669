"""Creating, finding, listing and dropping tables; missing and late servers."""

from __future__ import annotations

import asyncio
import gc
import pickle
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from replay_client import (
    ClosedError,
    Column,
    DeadlineExceededError,
    InvalidArgumentError,
    ReplayClient,
    ServerUnavailableError,
    Stack,
    Table,
    TableNotFoundError,
    TableReplacedError,
    Transitions,
    aio,
)

from tests.client.conftest import COLUMNS
from tests.client.numbered import rows
from tests.support.caller import wire_only
from tests.support.server_process import ServerProcess

ALL_DATA_PATHS = True

NewTable = Callable[..., Table]
StartServer = Callable[..., ServerProcess]
Connect = Callable[..., ReplayClient]


def test_a_table_is_made_as_asked(new_table: NewTable) -> None:
    table = new_table(name="as-asked", capacity=123, backend="rank", alpha=0.5, seed=7)
    described = table.describe()
    assert (described.name, described.capacity, described.backend, described.seed) == ("as-asked", 123, "rank", 7)
    assert described.parameters == {"alpha": 0.5}
    assert described.schema == table.schema
    assert {name: str(column) for name, column in table.schema.items()} == {
        "number": "int64",
        "obs": "float32[3]",
        "done": "bool",
    }
    assert (table.name, table.capacity, table.backend, table.uid) == ("as-asked", 123, "rank", described.uid)
    assert table.slots > table.capacity


def test_a_parameter_that_is_misspelled_is_refused_by_python(client: ReplayClient) -> None:
    with pytest.raises(TypeError, match="alhpa"):
        client.create_table("t", columns=COLUMNS, capacity=10, alhpa=1.0)  # type: ignore[call-arg]


def test_a_parameter_left_out_or_none_takes_its_default(new_table: NewTable) -> None:
    assert new_table(alpha=None).parameters["alpha"] == 0.6


@wire_only
@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"capacity": 0}, "capacity"),
        ({"backend": "sumtree"}, "backend"),
        ({"alpha": -1.0}, "alpha"),
        ({"columns": {}}, "columns"),
        ({"columns": {"_hidden": Column("bool")}}, "columns"),
        ({"name": "no spaces"}, "name"),
        ({"name": 5}, "name"),
        ({"capacity": "many"}, "capacity"),
        ({"capacity": 1.5}, "capacity"),
        ({"capacity": None}, "capacity"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 1.0}, "seed"),
        ({"backend": None}, "backend"),
        ({"alpha": "high"}, "alpha"),
        ({"columns": None}, "columns"),
        ({"columns": ["obs"]}, "columns"),
        ({"steps": Transitions(), "columns": {"x": Column("bool"), "y": Stack(["x"], 2)}}, "columns.y.of"),  # type: ignore[arg-type]
        ({"steps": Transitions(), "columns": {"x": Column("bool"), "y": Stack("x", 2, ahead="no")}}, "columns.y.ahead"),  # type: ignore[arg-type]
    ],
)
def test_a_config_that_cannot_be_is_refused_and_its_field_is_named(
    new_table: NewTable, config: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        new_table(**config)
    assert field in refusal.value.metadata["field"]


def test_a_capacity_may_be_a_whole_float(new_table: NewTable) -> None:
    assert new_table(capacity=1e3).capacity == 1000


def test_names_that_are_no_text_are_refused(client: ReplayClient) -> None:
    unknown: Any = 5
    for field, call in (
        ("name", lambda: client.table(unknown)),
        ("name", lambda: client.table("\ud800")),
        ("name", lambda: client.drop_table(unknown)),
        ("name", lambda: client.verify_checkpoint(unknown)),
        ("series", lambda: client.checkpoint(series=unknown)),
        ("tables", lambda: client.checkpoint("table")),
        ("tables", lambda: client.checkpoint([unknown])),
        ("keep", lambda: client.checkpoint(keep=1.5)),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgumentError, match=f"^{field}: expected "):
            call()


def test_tables_are_listed_by_name(client: ReplayClient, new_table: NewTable) -> None:
    for name in ("list-b", "list-a"):
        new_table(name=name).insert(rows([1, 2]))
    listed = [table for table in client.tables() if table.name.startswith("list-")]
    assert [table.name for table in listed] == ["list-a", "list-b"]
    assert [(table.size, table.inserted) for table in listed] == [(2, 2), (2, 2)]


def test_a_dropped_table_is_gone(client: ReplayClient, table: Table) -> None:
    table.drop()
    for call in (table.describe, table.stats, table.drop, lambda: client.table(table.name)):
        with pytest.raises(TableNotFoundError, match=table.name):
            call()
    with pytest.raises(LookupError):
        client.drop_table(table.name)


def test_a_table_made_anew_is_another_one(client: ReplayClient, table: Table) -> None:
    client.drop_table(table.name)
    again = client.create_table(table.name, columns=COLUMNS, capacity=1000)
    assert again.uid != table.uid
    for call in (
        lambda: table.insert(rows([1])),
        lambda: table.sample(1, beta=0.4),
        lambda: table.update_priorities([0], [1.0]),
        lambda: table.read([0]),
        table.reset,
        table.drop,
    ):
        with pytest.raises(TableReplacedError):
            call()


def test_figures_of_the_server_and_its_tables(client: ReplayClient, table: Table) -> None:
    table.insert(rows(range(10)), priorities=range(1, 11))
    table.sample(4, beta=0.4)
    stats = client.stats()
    assert stats.server.uptime_s > 0
    assert stats.server.methods["Insert"].calls >= 1
    figures = stats.tables[table.name]
    assert (figures.name, figures.size, figures.capacity, figures.inserted) == (table.name, 10, 1000, 10)
    assert (figures.sampled, figures.smallest_priority, figures.largest_priority) == (4, 1.0, 10.0)
    assert figures.priorities[0.5] == pytest.approx(5.5, abs=1)


def test_a_closed_client_says_so(server: ServerProcess) -> None:
    with ReplayClient(server.address) as client:
        table = client.create_table("closed", columns=COLUMNS, capacity=10)
        table.drop()
    for call in (client.tables, table.describe, table.writer, lambda: table.sampler(1, beta=0.0)):
        with pytest.raises(ClosedError):
            call()
    client.close()


@pytest.mark.parametrize("address", ["", None])
def test_an_address_is_needed(address: str) -> None:
    with pytest.raises(InvalidArgumentError):
        ReplayClient(address)


@pytest.mark.timed
@wire_only
def test_a_server_that_is_not_there_is_told_apart_from_a_slow_one(start_server: StartServer, connect: Connect) -> None:
    server = start_server()
    client = connect(server, timeout_s=0.5)
    client.tables()
    server.process.send_signal(signal.SIGSTOP)
    with pytest.raises(DeadlineExceededError):
        client.tables()
    server.kill()
    began = time.monotonic()
    with pytest.raises(ServerUnavailableError):
        client.tables()
    assert time.monotonic() - began < 5


@wire_only
def test_calls_wait_for_a_server_that_restarts(start_server: StartServer, connect: Connect) -> None:
    server = start_server()
    client = connect(server)
    assert client.tables() == []
    server.kill()
    answers: list[object] = []
    waiting = threading.Thread(target=lambda: answers.append(client.tables()))
    waiting.start()
    server.restart()
    waiting.join()
    assert answers == [[]]


def test_a_client_that_arrives_without_its_token_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REPLAY_TOKEN", raising=False)
    arrived: ReplayClient = pickle.loads(pickle.dumps(ReplayClient("localhost:1", token="a-token-of-16-bytes")))
    arrived.close()
    with pytest.raises(ClosedError):
        arrived.tables()
    awaited: aio.ReplayClient = pickle.loads(pickle.dumps(aio.ReplayClient("localhost:1", token="a-token-of-16-bytes")))
    asyncio.run(awaited.close())


def test_a_client_keeps_every_object_that_it_is_given(server: ServerProcess) -> None:
    class Needed:
        """Something that a client needs."""

    with ReplayClient(server.address) as client:
        kept = []
        for _ in range(2):
            needed = Needed()
            client.keep_alive(needed)
            kept.append(weakref.ref(needed))
            del needed
        gc.collect()
        assert all(reference() is not None for reference in kept)
