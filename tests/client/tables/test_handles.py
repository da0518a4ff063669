"""Clients and tables as handles: pickling, copying, Python protocols."""

from __future__ import annotations

import copy
import io
import logging
import multiprocessing
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from replay_client import (
    Column,
    InvalidArgumentError,
    ReplayClient,
    Table,
    TableExistsError,
    TableNotFoundError,
    UnauthenticatedError,
)

from tests.client.conftest import COLUMNS
from tests.client.numbered import assert_whole, row, rows
from tests.support.access import ALL, write_usual_tokens
from tests.support.server_process import ServerProcess

NewTable = Callable[..., Table]
StartServer = Callable[..., ServerProcess]
Connect = Callable[..., ReplayClient]
TRAVELS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda handle: pickle.loads(pickle.dumps(handle)),
    "cloudpickle": lambda handle: pickle.loads(cloudpickle.dumps(handle)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}
travelling = pytest.mark.parametrize("travel", TRAVELS.values(), ids=TRAVELS)


@travelling
def test_a_table_works_where_it_arrives(table: Table, travel: Callable[[Table], Table]) -> None:
    table.insert(rows(range(20)))
    arrived = travel(table)
    assert (arrived.name, arrived.uid, arrived.schema) == (table.name, table.uid, table.schema)
    assert_whole(arrived.sample(8, beta=0.4).columns)
    assert arrived.insert(rows([20, 21])).tolist() == [20, 21]
    with arrived.writer() as writer:
        writer.append(**row(22))
    with arrived.sampler(4, beta=0.4) as sampler:
        batch = next(sampler)
        sampler.update_priorities(batch.row_keys, [1.0] * 4)
    assert len(arrived) == len(table) == 23


@travelling
def test_a_client_arrives_with_its_options_and_a_connection_of_its_own(
    server: ServerProcess, travel: Callable[[ReplayClient], ReplayClient]
) -> None:
    with ReplayClient(server.address, timeout_s=7.0, same_host=False) as client:
        arrived = travel(client)
        assert (arrived.address, arrived._session.options) == (client.address, client._session.options)
        arrived.tables()
        arrived.close()
        client.tables()


def test_handles_that_travel_together_share_their_connection(client: ReplayClient, table: Table) -> None:
    for travel in (TRAVELS["pickle"], TRAVELS["deepcopy"]):
        there, its_table = travel([client, table])
        assert there._session is its_table._session


def insert_there(table: Table, numbers: range) -> None:
    table.insert(rows(numbers))


def test_spawned_workers_are_given_the_table(table: Table) -> None:
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=insert_there, args=(table, range(part, 50, 2))) for part in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert sorted(table.read(range(50)).columns["number"].tolist()) == list(range(50))


@pytest.fixture
def guarded(start_server: StartServer, tmp_path: Path) -> ServerProcess:
    """A server that requires a token."""
    return start_server("--tokens", str(write_usual_tokens(tmp_path / "tokens.toml")))


def test_a_token_does_not_travel_and_is_read_anew(guarded: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REPLAY_TOKEN", raising=False)
    with ReplayClient(guarded.address, token=ALL) as client:
        table = client.create_table("mine-table", columns={"x": Column("int64")}, capacity=10)
        packed = pickle.dumps([client, table])
        assert copy.deepcopy(table).size() == 0
    assert ALL.encode() not in packed
    lost_client, lost_table = pickle.loads(packed)
    for attempt in (lost_client.tables, lost_table.stats, lambda: lost_table.insert({"x": [1]}), lost_table.writer):
        with pytest.raises(UnauthenticatedError, match="REPLAY_TOKEN"):
            attempt()
    with pytest.raises(UnauthenticatedError, match="REPLAY_TOKEN"):
        pickle.loads(pickle.dumps(lost_client)).tables()
    monkeypatch.setenv("REPLAY_TOKEN", ALL)
    found_client, found_table = pickle.loads(packed)
    assert found_client.tables()
    assert found_table.insert({"x": [1]}).tolist() == [0]


def test_writers_and_samplers_do_not_travel_and_say_what_does(table: Table) -> None:
    for stream in (table.writer(), table.sampler(1, beta=0.4), table.sampler(1, beta=0.4, device="cpu")):
        for travel in TRAVELS.values():
            with pytest.raises(TypeError, match="send the table"):
                travel(stream)


def test_a_client_is_a_container_of_tables(client: ReplayClient, table: Table) -> None:
    assert table.name in client
    assert "no-such-table" not in client
    assert 5 not in client
    assert table.name in list(client)
    assert client[table.name].uid == table.uid
    with pytest.raises(KeyError) as error:
        client["no-such-table"]
    assert isinstance(error.value, TableNotFoundError)
    assert not str(error.value).startswith(("'", '"'))


def test_a_table_has_a_length_and_is_true_even_without_rows(client: ReplayClient, table: Table) -> None:
    assert (len(table), table.size(), bool(table)) == (0, 0, True)
    table.insert(rows(range(1002)))
    assert (len(table), table.size(), bool(table)) == (1000, 1000, True)
    table.drop()
    with pytest.raises(TableNotFoundError):
        len(table)


def test_handles_show_what_they_are(client: ReplayClient, table: Table) -> None:
    assert repr(client) == f"<ReplayClient of {client.address}>"
    assert table.name in repr(table)
    assert client.address in repr(table)
    with table.writer(max_delay_s=60.0) as writer:
        writer.append(**row(1))
        shown = f"<Writer of table {table.name!r} at {client.address}: {{}} rows in flight>"
        assert repr(writer) in {shown.format(1), shown.format(0)}
    with table.sampler(3, beta=0.5) as sampler:
        assert repr(sampler).startswith(f"<Sampler of table {table.name!r} at {client.address}: ")
        assert "batch_size=3, beta=0.5" in repr(sampler)


# Existing tables.


def test_a_table_that_is_opened_with_rows_in_it_is_a_warning_unless_that_was_said(
    client: ReplayClient, new_table: NewTable, caplog: pytest.LogCaptureFixture
) -> None:
    table = new_table()
    assert table.created
    again: dict[str, Any] = {"name": table.name, "columns": COLUMNS, "capacity": table.capacity}
    assert not client.create_table(**again).created
    assert not caplog.records  # it has no rows
    table.insert(rows(range(20)))
    assert not client.create_table(**again, if_exists="open").created
    assert not caplog.records
    opened = client.create_table(**again)
    assert (opened.created, opened.uid, opened.size()) == (False, table.uid, 20)
    assert not client.table(table.name).created
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert f"opened existing table {table.name!r} with 20 rows" in warning.getMessage()


def test_a_table_that_exists_is_reset_or_an_error_if_that_was_said(client: ReplayClient, new_table: NewTable) -> None:
    table = new_table()
    table.insert(rows(range(20)))
    again: dict[str, Any] = {"name": table.name, "columns": COLUMNS, "capacity": table.capacity}
    with pytest.raises(TableExistsError, match="with 20 rows"):
        client.create_table(**again, if_exists="error")
    assert table.size() == 20
    assert not client.create_table(**again, if_exists="reset").created
    assert table.size() == 0
    table.insert(rows([1]))
    for choice in ("open", "reset", "error"):
        with pytest.raises(TableExistsError):
            client.create_table(**{**again, "capacity": 5}, if_exists=choice)
    assert table.size() == 1
    assert new_table(name="made-by-error", if_exists="error").created
    with pytest.raises(InvalidArgumentError) as error:
        client.create_table(**again, if_exists="replace")  # type: ignore[arg-type]
    assert error.value.metadata["field"] == "if_exists"


def test_another_seed_opens_the_same_table(client: ReplayClient, new_table: NewTable) -> None:
    table = new_table(seed=1)
    for seed in (2, None):
        opened = client.create_table(table.name, columns=COLUMNS, capacity=table.capacity, seed=seed)
        assert opened.uid == table.uid
        assert opened.describe().seed == 1


def test_a_script_that_is_run_twice_says_that_it_goes_on_with_the_rows_of_before(
    server: ServerProcess, new_table: NewTable
) -> None:
    script = (
        "import sys; from replay_client import Column, ReplayClient\n"
        "table = ReplayClient(sys.argv[1]).create_table(sys.argv[2], columns={'x': Column('int64')}, capacity=5000)\n"
        "table.insert({'x': range(2000)})\n"
    )
    name = new_table(columns={"x": Column("int64")}, capacity=5000).name
    said = [
        subprocess.run(
            [sys.executable, "-c", script, server.address, name], capture_output=True, text=True, check=True
        ).stderr
        for _ in range(2)
    ]
    assert said[0] == ""
    assert "2,000 rows" in said[1]


def test_threads_share_the_connection_of_a_client_that_arrived(client: ReplayClient) -> None:
    arrived: ReplayClient = pickle.loads(pickle.dumps(client))
    found = []
    threads = [threading.Thread(target=lambda: found.append(arrived._session.connection)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len(set(map(id, found))) == 1


def test_a_client_on_disk_is_read_where_nobody_answers(client: ReplayClient) -> None:
    kept = io.BytesIO()
    pickle.dump(client, kept)
    kept.seek(0)
    assert pickle.load(kept).address == client.address
