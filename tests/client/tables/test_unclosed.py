"""Writers and samplers that nobody closes: what they have still arrives, and nothing of them is left behind."""

from __future__ import annotations

import gc
import logging
import math
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from threading import Event

import pytest
from replay_client import ClosedError, Column, ReplayClient, Table
from replay_client._transport import session

from tests.client.conftest import COLUMNS, ways
from tests.client.numbered import row, rows
from tests.support.caller import wire_only
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

ALL_DATA_PATHS = True

Connect = Callable[..., ReplayClient]
StartServer = Callable[..., ServerProcess]

_PROGRAM = """
import asyncio, sys
from replay_client import Column, ReplayClient, aio

client = ReplayClient(sys.argv[1])
writer = client["waits"].writer(max_delay_s=1000.0)
for number in range(50):
    writer.append(number=number)

async def write():
    global awaited
    table = await aio.ReplayClient(sys.argv[1])["awaits"]
    awaited = table.writer(max_delay_s=1000.0)
    for number in range(50):
        await awaited.append(number=number)

asyncio.run(write())
"""


def threads() -> set[str]:
    """Names of the threads of writers and samplers."""
    ours = ("replay-writer", "replay-writer-sends", "replay-finishes", "replay-to-device", "replay-shard-away")
    return {thread.name for thread in threading.enumerate() if thread.name in ours}


def test_a_program_that_ends_without_closing_its_writers_loses_no_rows(server: ServerProcess) -> None:
    with ReplayClient(server.address) as client:
        tables = [client.create_table(name, columns={"number": Column("int64")}, capacity=100) for name in NAMES]
        ended = subprocess.run(
            [sys.executable, "-c", _PROGRAM, server.address], capture_output=True, text=True, check=True, timeout=60
        )
        assert [len(table) for table in tables] == [50, 50]
        assert ended.stderr == ""
        for table in tables:
            table.drop()


NAMES = ("waits", "awaits")


def test_a_writer_that_is_forgotten_delivers_its_rows_and_ends(table: Table) -> None:
    writer = table.writer(max_delay_s=1000.0)
    for number in range(50):
        writer.append(**row(number))
    forgotten = weakref.ref(writer)
    with pytest.warns(ResourceWarning, match=rf"unclosed writer of table '{table.name}'"):
        del writer
    assert forgotten() is None
    wait_until(lambda: len(table) == 50, "its rows arrive")
    wait_until(lambda: not threads(), "its threads end")


def test_a_stream_is_enough_to_keep_its_writer(table: Table) -> None:
    stream = table.writer(streams=2)[1]
    gc.collect()
    for number in range(2000):  # more than a block
        stream.append(**row(number))
    with pytest.warns(ResourceWarning):
        del stream
    wait_until(lambda: table.describe().inserted == 2000, "its rows arrive")


def test_a_client_that_is_closed_first_delivers_the_rows_of_its_writers(
    server: ServerProcess, table: Table, data_path: str
) -> None:
    client = ReplayClient(server.address, **ways(data_path))
    writer = client.table(table.name).writer(max_delay_s=1000.0)
    writer.append(**row(0))
    client.close()
    assert len(table) == 1
    with pytest.raises(ClosedError):
        writer.append(**row(1))


def test_rows_that_cannot_be_delivered_any_more_are_counted_in_a_warning(
    start_server: StartServer, connect: Connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "FINISH_S", 0.2)
    client = connect(server := start_server())
    writer = client.create_table("lost", columns=COLUMNS, capacity=100).writer(max_delay_s=1000.0)
    writer.append(**row(0))
    writer.append(**row(1))
    server.kill()
    with caplog.at_level(logging.WARNING):
        client.close()
    assert "2 rows of table 'lost' are lost: their writer was not closed" in caplog.text


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_sampler_that_is_forgotten_sends_its_updates_and_ends(table: Table, device: str | None) -> None:
    table.insert(rows(range(10)))
    sampler = table.sampler(4, beta=0.4, device=device)
    batch = next(sampler)
    sampler.update_priorities(batch, [7.0] * 4)
    forgotten = weakref.ref(sampler)
    with pytest.warns(ResourceWarning, match=rf"unclosed sampler .*of table '{table.name}'"):
        del sampler
    assert forgotten() is None
    wait_until(lambda: table.stats().largest_priority == 7.0, "its updates arrive")
    wait_until(lambda: not threads(), "its threads end")


def test_a_sampler_that_has_only_updated_is_finished(table: Table, server: ServerProcess, data_path: str) -> None:
    table.insert(rows(range(10)))
    client = ReplayClient(server.address, **ways(data_path))
    sampler = client.table(table.name).sampler(4)
    sampler.update_priorities([0], [7.0])
    client.close()
    assert table.stats().largest_priority == 7.0
    forgotten = table.sampler(4)
    forgotten.update_priorities([0], [8.0])
    with pytest.warns(ResourceWarning):
        del forgotten
    wait_until(lambda: table.stats().largest_priority == 8.0, "its update arrives")


def test_a_sampler_for_a_device_that_is_forgotten_while_it_waits_ends(new_table: Callable[..., Table]) -> None:
    table = new_table(capacity=10, backend="fifo")
    table.insert(rows(range(4)))
    sampler = table.sampler(4, device="cpu", timeout_s=math.inf)
    next(sampler)
    wait_until(lambda: bool(table.stats().waits), "its thread waits for rows")
    with pytest.warns(ResourceWarning):
        del sampler
    wait_until(lambda: not threads(), "its threads end")
    wait_until(lambda: not table.stats().waits, "the server knows")


@pytest.mark.parametrize("device", [None, "cpu"])
def test_writers_and_samplers_that_are_forgotten_keep_nothing_alive(
    server: ServerProcess, table: Table, data_path: str, device: str | None
) -> None:
    client = ReplayClient(server.address, **ways(data_path))
    needed = [Event(), Event()]  # any objects
    for each in needed:
        client.keep_alive(each)
    freed = [weakref.ref(each) for each in needed]
    opened = client.table(table.name)
    writer, sampler = opened.writer(), opened.sampler(1, beta=0.4, device=device)
    writer.append(**row(1))
    writer.flush()
    next(sampler)
    del needed, each, client, opened
    gc.collect()
    assert all(each() is not None for each in freed)
    with pytest.warns(ResourceWarning):
        del writer, sampler
    wait_until(lambda: gc.collect() >= 0 and all(each() is None for each in freed), "they are freed")


@wire_only
def test_what_never_began_is_no_reason_for_a_warning(table: Table, recwarn: pytest.WarningsRecorder) -> None:
    writer, samplers = table.writer(), [table.sampler(4, beta=0.4, device=device) for device in (None, "cpu")]
    del writer, samplers
    assert not [warning for warning in recwarn if warning.category is ResourceWarning]
