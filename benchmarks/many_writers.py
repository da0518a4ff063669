"""One learner together with 64 writers: time of a learner step, rows per second of each writer, time of a Stats call.

    python -m benchmarks.many_writers

Four processes run 16 writers each, and each writer has its own stream. In total, they insert a little more than 20,000
rows per second. Each writer sends at most 10 messages per second.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
from replay_client import ReplayClient
from rich.console import Console

from benchmarks.fleet import step_times_us
from benchmarks.report import Section, spread
from benchmarks.service import full_table, running_server
from benchmarks.workloads import CARTPOLE

PROCESSES = 4
WRITERS_EACH = 16
ROWS_PER_S = 20_480
WINDOW_S = 5.0
ROUNDS = 5
_TICK_S = 0.02
_SETTLE_S = 1.0
_STATS_EVERY_S = 0.02


def write(address: str) -> None:
    """Run one process of writers until standard input ends.

    Print a line once the writers have started, and each writer's acknowledged rows per second at the end.
    """
    rows = CARTPOLE.rows(256, np.random.default_rng(3))
    row = {name: values[0] for name, values in rows.items()}
    stop = threading.Event()

    def stop_with_input() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=stop_with_input, daemon=True).start()
    per_tick = ROWS_PER_S / PROCESSES / WRITERS_EACH * _TICK_S
    with ReplayClient(address) as client, ExitStack() as stack:
        table = client.table(CARTPOLE.name)
        writers = [stack.enter_context(table.writer()) for _ in range(WRITERS_EACH)]
        print("writing", flush=True)
        began, due = time.monotonic(), 0.0
        while not stop.wait(_TICK_S):
            until = (time.monotonic() - began) / _TICK_S * per_tick
            for _ in range(int(until) - int(due)):
                for writer in writers:
                    writer.append(row)
            due = until
        for writer in writers:
            writer.flush()
        elapsed = time.monotonic() - began
        print(*(f"{writer.acknowledged / elapsed:.1f}" for writer in writers), flush=True)


@contextmanager
def writers(address: str) -> Iterator[list[float]]:
    """Run the writers. When the block ends, the list contains the rows per second of each."""
    command = [sys.executable, "-m", "benchmarks.many_writers", "--write", address]
    arrived: list[float] = []
    with ExitStack() as stack:
        processes = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(PROCESSES)
        ]
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        time.sleep(_SETTLE_S)
        yield arrived
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in processes:
            assert process.stdout is not None
            arrived += map(float, process.stdout.read().split())


class StatsCalls:
    """Requests the server's statistics periodically, in a thread."""

    def __init__(self, client: ReplayClient) -> None:
        """Start the thread."""
        self.times_ms: list[float] = []
        self._client = client
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        while not self._stop.wait(_STATS_EVERY_S):
            began = time.perf_counter()
            self._client.stats()
            self.times_ms.append((time.perf_counter() - began) * 1e3)

    def stop(self) -> None:
        """Stop the thread."""
        self._stop.set()
        self._thread.join()


def messages_of(client: ReplayClient) -> int:
    """Return the number of messages that the server has received from writers."""
    written = client.stats().server.methods.get("Write")
    return 0 if written is None else written.calls


def measure(rounds: int = ROUNDS, window_s: float = WINDOW_S) -> Section:
    """Measure the learner alone and with the writers, in turn."""
    alone, among, rates, stats_ms, messages = [], [], [], [], []
    with running_server() as (address, _), ReplayClient(address) as client, ReplayClient(address) as asking:
        full_table(client, CARTPOLE)
        step_times_us(client, 1.0)
        for _ in range(rounds):
            alone.append(statistics.median(step_times_us(client, window_s)))
            with writers(address) as arrived:
                before, began = messages_of(asking), time.monotonic()
                calls = StatsCalls(asking)
                among.append(statistics.median(step_times_us(client, window_s)))
                calls.stop()
                messages.append((messages_of(asking) - before) / (time.monotonic() - began))
            rates += arrived
            stats_ms += calls.times_ms
    count = PROCESSES * WRITERS_EACH
    ratio = statistics.median(among) / statistics.median(alone)
    return Section(
        title=f"A learner next to {count} writers, cartpole",
        command="python -m benchmarks.many_writers",
        header=["figure", "value"],
        rows=[
            ["median step alone, us", spread(alone)],
            ["median step next to the writers, us", spread(among)],
            ["ratio", f"{ratio:.2f}"],
            ["rows per second of one writer", spread(rates)],
            ["rows per second, all writers", f"{sum(rates) / rounds:.0f}"],
            ["messages per second of one writer", spread([rate / count for rate in messages])],
            ["Stats call, ms, median", f"{statistics.median(stats_ms):.2f}"],
            ["Stats call, ms, 99th percentile", f"{float(np.percentile(stats_ms, 99)):.2f}"],
        ],
        notes=[f"{rounds} rounds of {window_s:g} s each. The writers' processes share the two cores."],
    )


def main() -> None:
    """Measure, or run one of the writers' processes."""
    if sys.argv[1:2] == ["--write"]:
        write(sys.argv[2])
    else:
        measure().show(Console(width=120))


if __name__ == "__main__":
    main()
