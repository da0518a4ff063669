"""Runs a server under mixed load for a long time: memory, handles and latencies must not grow.

    python -m tools.faults.soak --minutes 30 [--report docs/operations/reliability.md]

The load has two writers and a learner on streams, unary calls of every kind, tables created and dropped, clients that
come and go, waiting calls that time out, and checkpoints, at a steady pace below the machine's capacity. The server's
statistics are recorded every ten seconds. Writes a CSV file and a plot next to the report, and exits with status 1 if
anything grew.
"""

from __future__ import annotations

import csv
import itertools
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
from cyclopts import Parameter
from cyclopts.validators import Number
from numpy.typing import NDArray
from replay_client import Column, DeadlineExceededError, ReplayClient, Table, TableNotFoundError
from replay_proto.command_line import new_app, run_app
from rich.console import Console

from tests.support.server_process import ServerProcess
from tools.faults.report import document_with, write_section

COLUMNS = {"obs": Column("float32", (4,)), "action": Column("int64"), "reward": Column("float32")}
CAPACITY = 50_000
BATCH = 64
SAMPLE_EVERY_S = 10.0
WARM_UP = 6
"""Initial samples to skip, while rings fill and buffers warm up."""
LEAST_MINUTES = 2.0
"""Minimum duration: the warm-up, and one sample in each fifth of the rest."""
MOST_GROWTH_MB = 8.0
"""Allowed growth between the medians of the first and the last fifth of the run."""
MOST_HANDLES = 4
MOST_SLOWER = 2.0
"""Allowed ratio of latency in the last fifth to the first; other work on the machine varies."""
_PAUSE_S = {"learn": 0.004, "write": 0.002, "calls": 0.05, "tables": 3.0, "waits": 0.5, "checkpoints": 30.0}


@dataclass(frozen=True)
class Sample:
    """Statistics of ten seconds."""

    minute: float
    memory_mb: float
    """The server's own memory, excluding memory shared with files."""
    handles: int
    threads: int
    learner_step_ms: float
    """Median time of a step through a sampler."""
    insert_ms: float
    """Median time of a single call with 64 rows."""
    stats_ms: float
    """99th percentile."""
    steps: int
    rows: int


class Latencies:
    """Durations of calls by kind, since the last query."""

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        took = (time.perf_counter() - began) * 1e3
        with self._lock:
            self._times.setdefault(kind, []).append(took)

    def take(self) -> dict[str, list[float]]:
        with self._lock:
            taken, self._times = self._times, {}
        return taken


class Load:
    """Threads that use a server until stopped. A failing one stops all."""

    def __init__(self, address: str) -> None:
        self.latencies = Latencies()
        self.stopped = threading.Event()
        self.failure: BaseException | None = None
        self._address = address
        self._rng = np.random.default_rng(0)
        with ReplayClient(address) as client:
            client.create_table("main", columns=COLUMNS, capacity=CAPACITY)
        parts = {"learn": self._learn, "calls": self._call, "tables": self._make_tables, "waits": self._wait}
        parts |= {"checkpoints": self._checkpoint}
        self._threads = [threading.Thread(target=self._run, args=(kind, part)) for kind, part in parts.items()]
        self._threads += [threading.Thread(target=self._run, args=("write", self._write)) for _ in range(2)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.stopped.set()
        for thread in self._threads:
            thread.join()

    def _run(self, kind: str, part: Callable[[ReplayClient], Iterator[None]]) -> None:
        """Repeat the steps of one part of the load, with a new client from time to time."""
        try:
            while not self.stopped.is_set():
                with ReplayClient(self._address) as client:
                    for _ in itertools.islice(part(client), int(60 / _PAUSE_S[kind]) + 1):
                        if self.stopped.wait(_PAUSE_S[kind]):
                            break
        except BaseException as error:
            self.failure = error
            self.stopped.set()
            raise

    def _write(self, client: ReplayClient) -> Iterator[None]:
        with client.table("main").writer() as writer:
            for step in itertools.count():
                writer.append(obs=np.full(4, step, np.float32), action=step, reward=0.5, priority=step % 7 + 0.1)
                if step % 200 == 199:
                    writer.end_episode()
                yield

    def _learn(self, client: ReplayClient) -> Iterator[None]:
        with client.table("main").sampler(BATCH, beta=0.4, timeout_s=30.0) as sampler:
            while True:
                with self.latencies.timed("step"):
                    batch = next(sampler)
                    sampler.update_priorities(batch, self._rng.random(BATCH))
                yield

    def _call(self, client: ReplayClient) -> Iterator[None]:
        table, wire = client.table("main"), ReplayClient(self._address, same_host=False)
        with wire:
            over_wire = wire.table("main")
            while True:
                with self.latencies.timed("insert"):
                    table.insert(_rows(BATCH))
                batch = over_wire.sample(BATCH, beta=0.4)
                table.update_priorities(batch, np.ones(BATCH))
                assert table.read(batch).batch_size <= BATCH
                table.sample(BATCH, beta=1.0)
                with self.latencies.timed("stats"):
                    client.stats()
                yield

    def _make_tables(self, client: ReplayClient) -> Iterator[None]:
        for number, backend in enumerate(itertools.cycle(("sum_tree", "rank", "uniform"))):
            made = client.create_table(f"short-{number % 50}", columns=COLUMNS, capacity=5000, backend=backend)
            made.insert(_rows(500))
            made.sample(BATCH, beta=0.4)
            made.reset()
            made.drop()
            yield

    def _wait(self, client: ReplayClient) -> Iterator[None]:
        empty: Table = client.create_table("empty", columns=COLUMNS, capacity=10)
        while True:
            try:
                empty.sample(1, beta=0.4, timeout_s=0.05)
            except DeadlineExceededError:
                yield
            try:
                client.table("absent")
            except TableNotFoundError:
                yield

    def _checkpoint(self, client: ReplayClient) -> Iterator[None]:
        while True:
            client.checkpoint(["main"])
            yield


def _rows(count: int) -> dict[str, NDArray[Any]]:
    return {
        "obs": np.zeros((count, 4), np.float32),
        "action": np.zeros(count, np.int64),
        "reward": np.zeros(count, np.float32),
    }


def watch(server: ServerProcess, load: Load, minutes: float, console: Console) -> list[Sample]:
    """Record the server's statistics until the end."""
    process, samples, began = psutil.Process(server.pid), list[Sample](), time.monotonic()
    with ReplayClient(server.address) as client:
        before = client.stats().tables["main"]
        while time.monotonic() - began < minutes * 60 and not load.stopped.wait(SAMPLE_EVERY_S):
            now, times = client.stats().tables["main"], load.latencies.take()
            samples.append(
                Sample(
                    minute=round((time.monotonic() - began) / 60, 2),
                    memory_mb=server.resident_bytes / 1e6,
                    handles=process.num_fds(),
                    threads=process.num_threads(),
                    learner_step_ms=float(np.median(times["step"])),
                    insert_ms=float(np.median(times["insert"])),
                    stats_ms=float(np.percentile(times["stats"], 99)),
                    steps=(now.sampled - before.sampled) // BATCH,
                    rows=now.inserted - before.inserted,
                )
            )
            console.print(samples[-1])
    return samples


def growth(samples: Sequence[Sample], name: str) -> tuple[float, float]:
    """Medians of a figure over the first and the last fifth of a run."""
    values = [getattr(sample, name) for sample in samples[WARM_UP:]]
    fifth = max(1, len(values) // 5)
    return float(np.median(values[:fifth])), float(np.median(values[-fifth:]))


def is_flat(samples: Sequence[Sample]) -> bool:
    """Whether no figure grew more than allowed."""
    memory, handles, threads = (growth(samples, name) for name in ("memory_mb", "handles", "threads"))
    slower = [growth(samples, name) for name in ("learner_step_ms", "insert_ms", "stats_ms")]
    return (
        memory[1] - memory[0] <= MOST_GROWTH_MB
        and handles[1] - handles[0] <= MOST_HANDLES
        and threads[1] - threads[0] <= MOST_HANDLES
        and all(last <= MOST_SLOWER * first for first, last in slower)
    )


def draw(samples: Sequence[Sample], path: Path) -> None:
    """Draw memory, handles and latencies over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    upper, middle, lower = figure.subplots(3, 1, sharex=True)
    minutes = [sample.minute for sample in samples]
    upper.plot(minutes, [sample.memory_mb for sample in samples])
    upper.set(ylabel="memory, MB", ylim=(0, 1.3 * max(sample.memory_mb for sample in samples)))
    for name in ("handles", "threads"):
        middle.plot(minutes, [getattr(sample, name) for sample in samples], label=name)
    middle.set(ylabel="count", ylim=(0, 1.3 * max(sample.handles for sample in samples)))
    for name, label in (("learner_step_ms", "learner step"), ("insert_ms", "insert"), ("stats_ms", "stats, p99")):
        lower.plot(minutes, [getattr(sample, name) for sample in samples], label=label)
    lower.set(ylabel="ms", yscale="log", xlabel="minutes")
    for axes in (middle, lower):
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, frameon=False)
    for axes in (upper, middle, lower):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def write_report(samples: Sequence[Sample], report: Path) -> None:
    """Write the figures into the report, and a CSV file and a plot next to it."""
    with report.with_name("soak.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in fields(Sample))
        writer.writerows(astuple(sample) for sample in samples)
    draw(samples, report.with_name("soak.png"))
    lines = [
        ("minutes", f"{samples[-1].minute:.0f}"),
        ("learner steps, rows inserted", f"{samples[-1].steps:,}, {samples[-1].rows:,}"),
    ]
    for name, label, digits in (
        ("memory_mb", "server's memory, MB", 1),
        ("handles", "open files", 0),
        ("threads", "threads", 0),
        ("learner_step_ms", "learner step, ms, median", 2),
        ("insert_ms", "insert of 64 rows, ms, median", 2),
        ("stats_ms", "stats, ms, 99th percentile", 2),
    ):
        first, last = growth(samples, name)
        lines.append((label, f"{first:.{digits}f} → {last:.{digits}f}"))
    write_section(report, "soak", ("", "first → last fifth"), lines)


def main(
    *,
    minutes: Annotated[float, Parameter(validator=Number(gte=LEAST_MINUTES))] = 30.0,
    report: Annotated[Path | None, Parameter(validator=document_with("soak"))] = None,
) -> None:
    """Run, report, and check for growth.

    Args:
        minutes: how long to go on.
        report: document to write the figures into.
    """
    console = Console(width=160)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="replay-soak-")))
        flags = ("--data-dir", str(folder / "data"), "--checkpoint-dir", str(folder / "checkpoints"))
        server = ServerProcess(folder / "log", *flags)
        stack.callback(server.kill)
        load = Load(server.address)
        stack.callback(load.stop)
        samples = watch(server, load, minutes, console)
        load.stop()
        faults = [line for line in server.log().splitlines() if "ERROR" in line]
    flat = is_flat(samples)
    console.print(f"flat: {flat}; failure: {load.failure}; errors in the log: {faults}")
    if not flat or load.failure is not None or faults:
        sys.exit(1)
    if report is not None:
        write_report(samples, report)


if __name__ == "__main__":
    run_app(new_app("python -m tools.faults.soak", __doc__, main))
