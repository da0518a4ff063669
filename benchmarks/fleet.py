"""A fleet of actors on one server: 400 writers of 35 rows per second each, with and without a learner.

    python -m benchmarks.fleet

The writers are coroutines of another process, each with its own connection. They speak the protocol directly, because
400 clients of the library would need more than the two cores. Like the library, they send messages at the interval that
the server asks for, from 0.1 to 1 s.

The learner has a core of its own, where writers do not disturb it, because real writers run on other machines. The
process of the writers shares the server's core.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import grpc.aio
import numpy as np
import psutil
from numpy.typing import NDArray
from replay_client import ReplayClient
from replay_proto.v1 import replay_pb2
from rich.console import Console

from benchmarks.learner_step import BETA, touch
from benchmarks.report import Section, spread
from benchmarks.service import full_table, running_server
from benchmarks.workloads import CARTPOLE, Workload

WRITERS: Final = 400
ROWS_PER_S: Final = 35.0
SHORTEST_DELAY_S: Final = 0.1
LONGEST_DELAY_S: Final = 1.0
WINDOW_S: Final = 5.0
ROUNDS: Final = 5
_OF_SERVER, _OF_LEARNER = 0, 1
"""Cores of the server with the writers, and of the learner."""
_SETTLE_S: Final = 6.0
_WRITE: Final = "/replay.v1.ReplayService/Write"
_OWN_CONNECTION: Final = [("grpc.use_local_subchannel_pool", 1)]
_MOST_ROWS: Final = 1024
_MOST_BYTES: Final = 8_000_000


@functools.cache
def _values_of(workload: Workload) -> list[NDArray[Any]]:
    """Return the columns of the largest block that a writer may send."""
    count = min(_MOST_ROWS, _MOST_BYTES // workload.row_bytes)
    return list(workload.rows(count, np.random.default_rng(3)).values())


class LeanWriter:
    """A writer that speaks the protocol directly."""

    def __init__(self, address: str, workload: Workload = CARTPOLE) -> None:
        """Connect to a server with the full table of a workload."""
        self.delay_s = SHORTEST_DELAY_S
        """Interval that the server has asked for, within a writer's bounds."""
        self._channel = grpc.aio.insecure_channel(address, options=_OWN_CONNECTION)
        stream: Any = self._channel.stream_stream(_WRITE)
        self._stream = stream()
        self._writer_id = secrets.token_bytes(16)
        self._sequence = 0
        self._table = workload.name
        self._values = _values_of(workload)

    async def write(self, count: int) -> None:
        """Send a block of rows, and wait until it is acknowledged."""
        self._sequence += 1
        request = replay_pb2.WriteRequest(
            table=self._table,
            writer_id=self._writer_id,
            insertion=replay_pb2.Insertion(row_count=count, sequence=self._sequence),
            rows=b"".join(values[:count].tobytes() for values in self._values),
        )
        await self._stream.write(request.SerializeToString())
        response = replay_pb2.WriteResponse.FromString(await self._stream.read())
        self.delay_s = min(LONGEST_DELAY_S, max(SHORTEST_DELAY_S, response.delay_s))

    async def write_steadily(self, rows_per_s: float) -> None:
        """Write this many rows per second until canceled."""
        began, sent = time.monotonic() - random.random() * SHORTEST_DELAY_S, 0
        while True:
            await asyncio.sleep(self.delay_s)
            count = min(_MOST_ROWS, int((time.monotonic() - began) * rows_per_s) - sent)
            if count:
                await self.write(count)
                sent += count

    async def close(self) -> None:
        """Disconnect."""
        self._stream.cancel()
        await self._channel.close()


async def run_fleet(address: str, count: int) -> None:
    """Run writers until standard input ends, with the lowest CPU priority."""
    os.nice(19)
    writers = [LeanWriter(address) for _ in range(count)]
    tasks = [asyncio.create_task(writer.write_steadily(ROWS_PER_S)) for writer in writers]
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await asyncio.wait([ended, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(outcome, asyncio.CancelledError):
            raise RuntimeError("a writer failed") from outcome
    for writer in writers:
        await writer.close()


@contextmanager
def on_core(index: int) -> Iterator[None]:
    """Inside the block, run this thread and the processes that it starts on one of its cores; the last if too few."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[: index + 1][-1]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def fleet(address: str, count: int = WRITERS) -> Iterator[None]:
    """Run this many writers in another process, on the server's core, until the block ends."""
    command = [sys.executable, "-m", "benchmarks.fleet", "--write", address, str(count)]
    with on_core(_OF_SERVER):
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
    with process:
        time.sleep(_SETTLE_S)
        yield
        assert process.stdin is not None
        process.stdin.close()
        if process.wait():
            raise RuntimeError("the fleet failed; see above")


def step_times_us(client: ReplayClient, window_s: float) -> list[float]:
    """Return the time of each step of a learner, in microseconds, during a window of this many seconds."""
    rng = np.random.default_rng(1)
    times, end = [], time.perf_counter() + window_s
    with on_core(_OF_LEARNER), client.table(CARTPOLE.name).sampler(CARTPOLE.batch_size, beta=BETA) as sampler:
        while (began := time.perf_counter()) < end:
            batch = next(sampler)
            touch(batch)
            sampler.update_priorities(batch, rng.random(CARTPOLE.batch_size) + 0.1)
            times.append((time.perf_counter() - began) * 1e6)
    return times


def measure(rounds: int = ROUNDS, window_s: float = WINDOW_S) -> Section:
    """Measure the learner alone, the fleet alone, and both together, in turn."""
    alone, among, cores, rows, messages = [], [], [], [], []
    # Unlike those of a real fleet, all connections come from one host, so they share a lane.
    connections = ("--max-connections", str(WRITERS + 16))
    with ExitStack() as stack:
        with on_core(_OF_SERVER):
            address, process_id = stack.enter_context(running_server(*connections))
        client = stack.enter_context(ReplayClient(address))
        table, server = full_table(client, CARTPOLE), psutil.Process(process_id)
        step_times_us(client, 1.0)
        for _ in range(rounds):
            alone.append(float(np.percentile(step_times_us(client, window_s), 99)))
            with fleet(address):
                before, began = (client.stats(), sum(server.cpu_times()[:2])), time.monotonic()
                time.sleep(window_s)
                after, elapsed = (client.stats(), sum(server.cpu_times()[:2])), time.monotonic() - began
                cores.append((after[1] - before[1]) / elapsed)
                rows.append((after[0].tables[table.name].inserted - before[0].tables[table.name].inserted) / elapsed)
                calls = [stats.server.methods["Write"].calls for stats, _ in (before, after)]
                messages.append((calls[1] - calls[0]) / elapsed)
                among.append(float(np.percentile(step_times_us(client, window_s), 99)))
    return Section(
        title=f"A fleet of {WRITERS} writers of {ROWS_PER_S:g} rows per second",
        command="python -m benchmarks.fleet",
        header=["figure", "value"],
        rows=[
            ["cores of the server, without a learner", spread(cores)],
            ["rows per second, all writers", spread(rows)],
            ["messages per second, all writers", spread(messages)],
            ["99th percentile of a learner's step alone, us", spread(alone)],
            ["99th percentile of a learner's step next to the fleet, us", spread(among)],
            ["ratio", spread([beside / by_itself for beside, by_itself in zip(among, alone, strict=True)])],
        ],
        notes=[
            f"{rounds} rounds of {window_s:g} s each. The learner has a core of its own; the server shares the other "
            "core with the process of the writers."
        ],
    )


def main() -> None:
    """Measure, or run the process of the writers."""
    if sys.argv[1:2] == ["--write"]:
        asyncio.run(run_fleet(sys.argv[2], int(sys.argv[3])))
    else:
        measure().show(Console(width=120))


if __name__ == "__main__":
    main()
