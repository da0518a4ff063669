"""Times of writes, draws and inserts in the priority backends, by number of rows.

    python -m benchmarks.backends [--rows 100000 1048576 10000000] [--backends sum_tree rank] [--json FILE]

The times are those of Python calls with arrays in one thread. Each call uses different rows than the previous calls, so
that CPU caches help no more than they would in a server.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import numpy as np
from cyclopts import Parameter
from numpy.typing import NDArray
from replay_proto.command_line import new_app, run_app
from replay_server.backends import (
    DEAD_PRIORITY,
    LiveRows,
    PriorityIndex,
    index_bytes,
    make_index,
)
from replay_server.process.warming import warm_up
from rich.console import Console
from rich.table import Table

DEFAULT_ROWS = (100_000, 2**20, 10_000_000)
BATCH = 256
MANY_ROWS = 1024
DISTINCT_BATCHES = 400
CALLS = 1000


@dataclass(frozen=True)
class Timing:
    """Times of one kind of call."""

    call: str
    """What is called, such as ``write 256``."""
    median_us: float
    """Median in microseconds."""
    p10_us: float
    """10th percentile in microseconds."""
    p90_us: float
    """90th percentile in microseconds."""


@dataclass(frozen=True)
class Measured:
    """Measurements of one backend at one size."""

    backend: str
    """Name of the backend."""
    rows: int
    """Number of live rows."""
    bytes_per_row: float
    """Memory reserved by the index for each row, without the priority array."""
    rebuild_s: float
    """Seconds to build the index from the priority array."""
    timings: list[Timing]
    """Times of each kind of call."""


class Ring:
    """A full ring of random priorities, indexed by one backend."""

    def __init__(self, backend: str, rows: int) -> None:
        """Fill the ring and build the index."""
        self.generator = np.random.default_rng(0)
        self.rows = rows
        self.slots = rows + max(64, rows // 64)
        self.inserted = rows
        priorities = np.full(self.slots, DEAD_PRIORITY)
        priorities[:rows] = self.generator.exponential(size=rows)
        self.index: PriorityIndex = make_index(backend, {}, priorities)
        started = time.perf_counter()
        self.index.rebuild(self.live)
        self.rebuild_s = time.perf_counter() - started
        slots = [self.generator.choice(rows, BATCH, replace=False) for _ in range(DISTINCT_BATCHES)]
        self._slots = itertools.cycle(slots)
        self._priorities = itertools.cycle(list(self.generator.exponential(size=(DISTINCT_BATCHES + 1, BATCH))))
        self._fractions = itertools.cycle(list(self.generator.random((DISTINCT_BATCHES, BATCH))))

    @property
    def live(self) -> LiveRows:
        """The live rows."""
        return LiveRows(oldest=self.inserted - self.rows, size=self.rows, slots=self.slots)

    def prepare_write(self) -> Callable[[], object]:
        """Return a call that sets random priorities on random rows."""
        keys = next(self._slots) + self.inserted - self.rows
        priorities = next(self._priorities)
        return lambda: self.index.write(keys, priorities)

    def prepare_draw(self) -> Callable[[], object]:
        """Return a call that draws a batch of rows by priority."""
        fractions, live = next(self._fractions), self.live
        return lambda: self.index.draw(fractions, live)

    def prepare_write_and_draw(self) -> Callable[[], object]:
        """Return a call that writes and then draws."""
        write, draw = self.prepare_write(), self.prepare_draw()
        return lambda: (write(), draw())

    def prepare_insert(self, count: int) -> Callable[[], object]:
        """Return a call that adds new rows with the largest priority, and evicts as many of the oldest rows."""
        added: NDArray[np.int64] = np.arange(self.inserted, self.inserted + count)
        priorities = np.full(count, self.index.largest_priority)
        evicted = added - self.rows
        self.inserted += count

        def insert() -> None:
            self.index.write(added, priorities)
            self.index.clear(evicted)

        return insert


def timed(name: str, prepare: Callable[[], Callable[[], object]]) -> Timing:
    """Measure the times of many calls, without the time to prepare them."""
    taken_us = np.empty(CALLS)
    for i in range(CALLS):
        call = prepare()
        started = time.perf_counter_ns()
        call()
        taken_us[i] = (time.perf_counter_ns() - started) / 1000
    p10, median, p90 = np.percentile(taken_us, [10, 50, 90])
    return Timing(name, float(median), float(p10), float(p90))


def measure(backend: str, rows: int) -> Measured:
    """Measure one backend at one size."""
    ring = Ring(backend, rows)
    timings = [
        timed(f"write {BATCH}", ring.prepare_write),
        timed(f"draw {BATCH}", ring.prepare_draw),
        timed(f"write {BATCH} + draw {BATCH}", ring.prepare_write_and_draw),
        timed("insert 1", lambda: ring.prepare_insert(1)),
        timed(f"insert {MANY_ROWS}", lambda: ring.prepare_insert(MANY_ROWS)),
    ]
    return Measured(backend, rows, index_bytes(backend, rows) / rows, ring.rebuild_s, timings)


def show(results: Sequence[Measured]) -> None:
    """Print a table with a line for each backend and size."""
    table = Table(title="Priority backends: microseconds per call, median (10th to 90th percentile)")
    table.add_column("backend")
    table.add_column("rows", justify="right")
    for timing in results[0].timings:
        table.add_column(timing.call, justify="right")
    table.add_column("bytes per row", justify="right")
    table.add_column("rebuild, s", justify="right")
    for result in results:
        times = [f"{timing.median_us:.1f}\n({timing.p10_us:.1f} to {timing.p90_us:.1f})" for timing in result.timings]
        table.add_row(
            result.backend, f"{result.rows:,}", *times, f"{result.bytes_per_row:.1f}", f"{result.rebuild_s:.3f}"
        )
    Console(width=160).print(table)
    print(f"An insert is write + clear of as many old rows. {machine()}")


def machine() -> str:
    """Return a description of the processor, its cores and the version of Python."""
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


Backend = Literal["sum_tree", "rank", "uniform", "fifo"]


def main(
    *,
    rows: Annotated[tuple[int, ...], Parameter(consume_multiple=True)] = DEFAULT_ROWS,
    backends: Annotated[tuple[Backend, ...], Parameter(consume_multiple=True)] = get_args(Backend),
    json_file: Annotated[Path | None, Parameter(name="--json")] = None,
) -> None:
    """Measure what the command line asks for.

    Args:
        rows: numbers of live rows.
        backends: names of the backends.
        json_file: also write the figures to this file.
    """
    warm_up()
    results = [measure(backend, count) for backend in backends for count in rows]
    show(results)
    if json_file is not None:
        figures = {"machine": machine(), "results": [asdict(result) for result in results]}
        json_file.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    run_app(new_app("python -m benchmarks.backends", __doc__, main))
