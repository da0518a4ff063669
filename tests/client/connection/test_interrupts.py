"""Ctrl-C ends a waiting program quickly, and reports possible losses."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator

import pytest
from replay_client import Table
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
with table.writer(block_rows=10) as writer:
    for number in range(1_000_000):
        writer.append(number=number, obs=np.zeros(3), done=False)
        if number == 199:
            print("ready", flush=True)
"""
LEAVING = """
with table.writer(block_rows=10) as writer:
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
