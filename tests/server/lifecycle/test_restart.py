"""Tables across clean and unclean restarts."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray
from replay_proto.steps import Transitions
from replay_proto.v1 import replay_pb2
from replay_server.backends import BACKENDS
from replay_server.storage.runs import GOES_ON, TRUNCATED

from tests.support.caller import CalledTable, Caller, WriteStream, wire_only
from tests.support.deadlines import wait_until
from tests.support.refusals import code_of, refused
from tests.support.server_process import ServerProcess
from tests.support.wire_runs import step_runs

ALL_DATA_PATHS = True

StartServer = Callable[..., ServerProcess]
Call = Callable[[ServerProcess], Caller]
ROUNDS = 4
STREAMS, EPISODE_ROWS = 50, 100
OPEN_S = 1.5
"""Limit on what a million rows add to a start."""


@pytest.fixture
def durable(start_server: StartServer, tmp_path: Path) -> ServerProcess:
    """A server with durable tables."""
    return start_server("--data-dir", str(tmp_path / "data"))


def lived_in(table: CalledTable) -> dict[str, object]:
    """All state of a table that must survive its server."""
    keys = table.live_keys()
    rows = table.read(keys)
    description = table.describe()
    description.ClearField("directory")
    description.ClearField("socket")
    description.ClearField("owner_id")
    return {
        "description": description.SerializeToString(deterministic=True),
        "keys": rows.keys.tolist(),
        "values": rows.values.tolist(),
        "priorities": rows.priorities.tolist(),
        "streams": rows.streams.tolist(),
        "episodes": rows.episodes.tolist(),
        "masses": (table.stats().total_mass, table.stats().largest_priority, table.stats().smallest_priority),
    }


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_everything_comes_back(durable: ServerProcess, call: Call, end: str) -> None:
    caller = call(durable)
    tables = []
    for backend in BACKENDS:
        full = caller.create(backend=backend, capacity=50)
        full.insert(range(130), np.arange(130) * 0.5, stream=3, episode=2**64 - 1)
        full.update([100, 101, 129, 5], [0.0, 77.0, 1.0, 9.0])
        reset = caller.create(backend=backend)
        reset.insert(range(30))
        reset.reset()
        reset.insert(range(5), [1.0, 2.0, 3.0, 4.0, 5.0])
        tables += [full, reset, caller.create(backend=backend)]
    dropped = caller.create()
    dropped.insert([1])
    dropped.drop()
    before = {table.name: lived_in(table) for table in tables}

    getattr(durable, end)()
    durable.restart()

    caller = call(durable)
    assert caller.table_names() == sorted(before)
    for table in tables:
        again = table.through(caller)
        assert caller.table(table.name).uid == table.uid
        assert lived_in(again) == before[table.name]
        size, inserted = again.describe().size, again.describe().inserted
        if size:
            assert set(again.sample(300).keys) <= set(again.live_keys())
        assert again.insert([5, 6]).tolist() == [inserted, inserted + 1]
        largest = before[table.name]["masses"][1]  # type: ignore[index]
        assert again.read([inserted]).priorities.tolist() == [largest or 1.0]


@pytest.mark.timed
@wire_only
@pytest.mark.parametrize("item", [None, Transitions(3)], ids=["rows", "steps"])
@pytest.mark.parametrize("backend", ["sum_tree", "rank"])
def test_a_million_rows_add_little_to_a_start(
    start_server: StartServer, call: Call, tmp_path: Path, backend: str, item: Transitions | None
) -> None:
    durable = start_server("--data-dir", str(tmp_path / "data"), "--log-format", "json")
    rows, block = 1_000_000, 100_000
    table = call(durable).create(backend=backend, capacity=rows, item=item)
    random = np.random.default_rng(1)
    for first in range(0, rows + block, block):
        values = np.arange(first, first + block)
        insert_episodes(table, values, random) if item else table.insert(values, random.exponential(size=block))
    expected = table.stats()
    durable.kill()
    durable.restart()
    events = [json.loads(line) for line in durable.log().splitlines()]
    (opened,) = (event for event in events if event["message"].startswith(f"table {table.name} restored"))
    assert opened["duration_s"] < OPEN_S
    table = table.through(call(durable))
    assert (table.describe().size, table.describe().inserted) == (rows, rows + block)
    assert (table.stats().total_mass, table.stats().steps) == (expected.total_mass, expected.steps)
    assert table.read([block, rows + block - 1]).values.tolist() == [block, rows + block - 1]


def insert_episodes(table: CalledTable, values: NDArray[np.int64], random: np.random.Generator) -> None:
    """Insert rows as episodes of several streams."""
    for part in values.reshape(-1, STREAMS * EPISODE_ROWS):
        runs = [(stream, int(part[0]), 0, EPISODE_ROWS, TRUNCATED) for stream in range(STREAMS)]
        table.insert(part, random.exponential(size=STREAMS * (EPISODE_ROWS - 1)), runs=step_runs(runs))


@wire_only
def test_a_stream_may_skip_steps_right_after_a_restart_but_not_repeat_any(durable: ServerProcess, call: Call) -> None:
    table = call(durable).create(item=Transitions(1))
    insert_steps(table, 0, 4)
    with refused("INVALID_FIELD", field="runs.first_steps"):
        insert_steps(table, 6, 1)
    durable.kill()
    durable.restart()
    table = table.through(call(durable))
    with refused("INVALID_FIELD", field="runs.first_steps"):
        insert_steps(table, 3, 1)
    insert_steps(table, 6, 2)
    assert table.stats().steps == replay_pb2.StepStats(drawable=3, pending=2, broken=1)
    with refused("INVALID_FIELD", field="runs.first_steps"):
        insert_steps(table, 9, 1)


def insert_steps(table: CalledTable, first: int, rows: int) -> None:
    """Insert steps of one episode."""
    table.insert(np.arange(first, first + rows), runs=step_runs([(1, 1, first, rows, GOES_ON)]))


@wire_only
def test_a_server_without_a_data_directory_begins_anew(start_server: StartServer, call: Call) -> None:
    server = start_server()
    table = call(server).create()
    table.insert(range(5))
    server.terminate()
    server.restart()
    assert call(server).table_names() == []
    with refused("TABLE_NOT_FOUND", table=table.name):
        table.through(call(server)).sample(1)


@wire_only
def test_a_channel_finds_the_server_again_on_its_port(durable: ServerProcess, call: Call) -> None:
    table = call(durable).create()
    table.insert(range(5))
    durable.kill()
    with pytest.raises(grpc.RpcError) as error:
        table.describe()
    assert code_of(error.value) is grpc.StatusCode.UNAVAILABLE
    durable.restart()
    wait_until(lambda: _answers(table), "the channel has connected")
    assert table.read(range(5)).values.tolist() == list(range(5))


def _answers(table: CalledTable) -> bool:
    try:
        return table.describe().size == 5
    except grpc.RpcError:
        return False


@wire_only
def test_every_acknowledged_row_is_whole_after_a_kill_amid_inserts(durable: ServerProcess, call: Call) -> None:
    """Writers fill a small ring repeatedly, past its end, while the server is killed a few times.

    Values identify a row's writer and number. Every acknowledged live row must exist under its key, and every existing
    row must have been sent.
    """
    capacity, writers = 200, 3
    table = call(durable).create(capacity=capacity)
    acknowledged: dict[int, int] = {}
    sent: set[int] = set()
    sequences = [0] * writers
    for _ in range(ROUNDS):
        storm = [_Storm(call(durable), table, writer, sequences[writer]) for writer in range(writers)]
        wait_until(lambda storm=storm: all(each.count > 60 for each in storm), "rows have come")  # type: ignore[misc]
        durable.kill()
        for writer, each in enumerate(storm):
            each.join()
            acknowledged |= each.acknowledged
            sent |= each.sent
            sequences[writer] = each.last_sequence
        durable.restart()
        table = table.through(call(durable))
        inserted = table.describe().inserted
        assert max(acknowledged) < inserted
        rows = table.read(table.live_keys())
        assert len(rows.keys) == min(capacity, inserted)
        found = dict(zip(rows.keys.tolist(), rows.values.tolist(), strict=True))
        oldest = inserted - len(rows.keys)
        live = {key: value for key, value in acknowledged.items() if key >= oldest}
        assert {key: found[key] for key in live} == live
        assert set(found.values()) <= sent
        assert set(table.sample(500).values) <= sent


class _Storm(threading.Thread):
    """A writer that sends without pauses until the server dies."""

    ROWS = 7

    def __init__(self, caller: Caller, table: CalledTable, writer: int, last_sequence: int) -> None:
        super().__init__()
        self.last_sequence = last_sequence
        self.acknowledged: dict[int, int] = {}
        self.sent: set[int] = set()
        self.count = 0
        self._stream = WriteStream(table.through(caller), bytes([writer]) * 16)
        self._writer = writer
        self.start()

    def run(self) -> None:
        try:
            while True:
                sequence = self.last_sequence + 1
                values = self._writer * 10**9 + sequence * 100 + np.arange(self.ROWS)
                self.sent |= set(values.tolist())
                keys = self._stream.write(values, sequence)
                self.acknowledged |= dict(zip(keys.tolist(), values.tolist(), strict=True))
                self.last_sequence = sequence
                self.count += 1
        except grpc.RpcError:
            self._stream.close()
