"""Ctrl-C ends a waiting program quickly, and reports possible losses."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from replay_client import Column, ReplayClient, ServerUnavailableError, Table
from replay_client._transport.connection import MessageStream
from replay_client._transport.interrupts import NOTICED_S, blocks_for_s
from replay_client.sync.writer import GIVE_UP_S

from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

NewTable = Callable[..., Table]
Start = Callable[..., subprocess.Popen[str]]
ENDS_WITHIN_S = 20.0
"""The longest wait of a writer for its acknowledgements, plus the shutdown of Python on a busy machine."""

BEGINNING = """
import logging, math, sys
import numpy as np
from replay_client import ReplayClient

logging.basicConfig()
client = ReplayClient(sys.argv[1])
table = client.table(sys.argv[2])
"""
WRITING = """
with table.writer(block_rows=10, max_blocks_in_flight=16) as writer:
    for number in range(1_000_000):
        writer.append(number=number, obs=np.zeros(3), done=False)
        if number == 199:
            print("ready", flush=True)
"""
LEAVING = """
with table.writer(block_rows=10, max_blocks_in_flight=16) as writer:
    for number in range(150):
        writer.append(number=number, obs=np.zeros(3), done=False)
    flush = writer.flush

    def flush_after_leaving(**options):
        print("ready", flush=True)
        flush(**options)

    writer.flush = flush_after_leaving
"""
DRAWING = """
with table.sampler(4, beta=0.4, timeout_s=math.inf, {options}) as sampler:
    batch = next(sampler)
    sampler.update_priorities(batch.row_keys, [1.0] * 4)
    print("ready", flush=True)
    while True:
        next(sampler)
"""


@pytest.fixture
def start(server: ServerProcess) -> Iterator[Start]:
    """Starts programs, which print a line when they are about to be interrupted."""
    started: list[subprocess.Popen[str]] = []

    def run(program: str, table: Table) -> subprocess.Popen[str]:
        code = textwrap.dedent(BEGINNING + program)
        process = subprocess.Popen(
            [sys.executable, "-c", code, server.address, table.name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def interrupted(process: subprocess.Popen[str]) -> tuple[float, str]:
    """Send Ctrl-C; return how many seconds the process took to exit, and its output."""
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=ENDS_WITHIN_S)
    assert "KeyboardInterrupt" in said
    return time.monotonic() - began, said


def test_ctrl_c_in_a_writer_that_is_held_up_ends_it_and_says_how_many_rows_are_left(
    new_table: NewTable, start: Start
) -> None:
    table = new_table(min_size=10, samples_per_insert=1.0, error_buffer=20.0)
    process = start(WRITING, table)
    wait_until(lambda: table.stats().waiting_inserts == 1, "the limiter holds the writer up")
    took_s, said = interrupted(process)
    assert took_s < ENDS_WITHIN_S
    found = re.search(r"WARNING:replay_client.sync.writer:(\d+) rows of table .* were not acknowledged", said)
    assert found is not None, said
    assert int(found[1]) >= 160


def test_ctrl_c_while_a_writer_flushes_at_its_end_says_how_many_rows_are_left(
    new_table: NewTable, start: Start
) -> None:
    table = new_table(min_size=10, samples_per_insert=1.0, error_buffer=20.0)
    process = start(LEAVING, table)
    wait_until(lambda: table.stats().waiting_inserts == 1, "the limiter holds the writer up")
    took_s, said = interrupted(process)
    assert took_s < GIVE_UP_S, "it waited again"
    left = 150 - table.describe().inserted
    assert f"{left} rows of table {table.name!r} were not acknowledged" in said


@pytest.mark.parametrize("options", ["", "prefetch=1", "device='cpu'"])
def test_ctrl_c_in_a_sampler_that_waits_for_rows_ends_it(new_table: NewTable, start: Start, options: str) -> None:
    table = new_table(backend="fifo")
    table.insert({"number": range(4), "obs": [[0.0] * 3] * 4, "done": [False] * 4})
    process = start(DRAWING.format(options=options), table)
    wait_until(lambda: table.stats().waiting > 0, "a draw waits")
    took_s, _ = interrupted(process)
    assert took_s < ENDS_WITHIN_S


class Answers:
    """A gRPC stream that answers twice, and notes which thread asks."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self._left = [b"first", b"second"]

    def __next__(self) -> bytes:
        self.threads.append(threading.current_thread())
        if not self._left:
            raise StopIteration
        return self._left.pop(0)


def test_no_interrupt_of_the_main_thread_hits_grpc_while_it_waits() -> None:
    answers = Answers()
    connection: Any = SimpleNamespace(address="localhost:1")
    stream = MessageStream(connection, answers)  # type: ignore[arg-type]
    assert [stream.receive(), stream.receive(5.0)] == [b"first", b"second"]
    for _ in range(2):
        with pytest.raises(ServerUnavailableError, match="ended the stream"):
            stream.receive()
    assert threading.main_thread() not in answers.threads


def test_another_thread_receives_itself_until_it_gives_a_time_limit() -> None:
    answers = Answers()
    connection: Any = SimpleNamespace(address="localhost:1")
    stream = MessageStream(connection, answers)  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as pool:
        assert [pool.submit(stream.receive).result(), pool.submit(stream.receive, 5.0).result()] == [
            b"first",
            b"second",
        ]
    assert len(set(answers.threads)) == 2


def test_only_the_main_thread_looks_for_signals_during_a_wait() -> None:
    assert [blocks_for_s(left_s) for left_s in (None, 60.0, 0.01)] == [NOTICED_S, NOTICED_S, 0.01]
    with ThreadPoolExecutor(1) as pool:
        assert [pool.submit(blocks_for_s, left_s).result() for left_s in (None, 60.0)] == [None, 60.0]


def test_the_main_thread_enters_no_lock_through_a_condition(new_table: NewTable) -> None:
    """`Condition.__enter__` is Python: an interrupt after it has taken the lock would leave it taken for ever."""
    entered: list[str] = []

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code is threading.Condition.__enter__.__code__ and frame.f_back is not None:
            entered.append(frame.f_back.f_code.co_filename)

    table = new_table(capacity=1000)
    row = {"number": 0, "obs": np.zeros(3), "done": False}
    sys.setprofile(note)
    try:
        with table.writer(block_rows=4) as writer:
            for _ in range(10):
                writer.append(row)
            writer.end_episode()
            writer.flush()
        for device in (None, "cpu"):
            options: Any = {"device": device}
            with table.sampler(4, **options) as sampler:
                for _ in range(4):
                    sampler.update_priorities(next(sampler), np.ones(4))
                sampler.flush()
    finally:
        sys.setprofile(None)
    assert [name for name in entered if "replay_client" in name] == []


class InterruptedSocket:
    """A socket whose next `send` is interrupted by Ctrl-C, after the system has taken the data."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._is_interrupted = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def send(self, data: memoryview) -> int:
        """Send, and interrupt the first call."""
        sent: int = self._real.send(data)
        if not self._is_interrupted:
            self._is_interrupted = True
            raise KeyboardInterrupt
        return sent


def test_a_sampler_that_was_interrupted_while_it_sent_goes_on(server: ServerProcess) -> None:
    with ReplayClient(server.address) as client:
        columns = {"x": Column("float32")}
        table = client.create_table("interrupted", columns=columns, capacity=100, alpha=1.0, epsilon=0.0)
        keys = table.insert({"x": np.arange(100.0)})
        sampler: Any = table.sampler(16, prefetch=1)
        next(sampler)
        frames = sampler._stream._stream._frames
        frames._socket = InterruptedSocket(frames._socket)
        with pytest.raises(KeyboardInterrupt):
            next(sampler)
        next(sampler)
        sampler.update_priorities(keys, np.full(100, 5.0))
        assert next(sampler).total_mass == 500.0
        sampler.close()
        table.drop()
