"""Exports a million rows to a Parquet file while a writer writes, and loads the file into a new table.

python -m benchmarks.transfers
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Final, NamedTuple

import numpy as np
from replay_client import Column, ReplayClient, Table
from replay_proto.command_line import new_app, run_app
from rich.console import Console

from benchmarks.report import Section, spread
from benchmarks.service import full_table, running_server
from benchmarks.workloads import Workload

ROUNDS: Final = 5
ROWS: Final = Workload("transfers", capacity=1_000_000, batch_size=256, obs=Column("float32", (20,)))
"""A million rows of 173 bytes."""
_BURST: Final = 200
_PAUSE_S: Final = 0.01
_COPY: Final = "copy"


class Cost(NamedTuple):
    """Time and memory that a transfer took."""

    wall_s: float
    cpu_s: float
    """CPU time of the client."""
    peak_mb: float
    """Peak memory of the client's process, with Python and all libraries."""
    rows: int


def export_rows(address: str, path: str) -> Cost:
    """Export the table; runs in a process of its own."""
    with ReplayClient(address) as client:
        table = client[ROWS.name]
        return _cost(lambda: table.to_parquet(path).rows)


def load_rows(address: str, path: str) -> Cost:
    """Load the file into a new table; runs in a process of its own."""
    with ReplayClient(address) as client:
        cost = _cost(lambda: len(client.load_parquet(path, name=_COPY)))
        client.drop_table(_COPY)
        return cost


def measure(rounds: int = ROUNDS) -> Section:
    """Measure exports and loads in turn."""
    with (
        running_server() as (address, _),
        ReplayClient(address) as client,
        tempfile.TemporaryDirectory() as folder,
        _writing(full_table(client, ROWS)),
    ):
        path = str(Path(folder) / "rows.parquet")
        costs = [(_alone(export_rows, address, path), _alone(load_rows, address, path)) for _ in range(rounds)]
        size_mb = Path(path).stat().st_size / 1e6
    exports, loads = zip(*costs, strict=True)
    return Section(
        title=f"A million rows of {ROWS.row_bytes} bytes to a Parquet file and back, while a writer writes",
        command="python -m benchmarks.transfers",
        header=["transfer", "seconds", "CPU seconds of the client", "peak MB of the client", "rows"],
        rows=[_row("to_parquet", exports), _row("load_parquet", loads)],
        notes=[
            f"The file has {size_mb:.0f} MB. Python with the client, NumPy and pyarrow takes about 110 MB of memory."
        ],
    )


def _row(name: str, costs: tuple[Cost, ...]) -> list[str]:
    figures = (spread([getattr(cost, field) for cost in costs]) for field in ("wall_s", "cpu_s", "peak_mb"))
    return [name, *figures, f"{min(cost.rows for cost in costs):,}"]


def _cost(transfer: Callable[[], int]) -> Cost:
    began, cpu_began = time.perf_counter(), time.process_time()
    rows = transfer()
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    return Cost(wall_s, cpu_s, _peak_mb(), rows)


def _peak_mb() -> float:
    """Return the peak memory of this process. That of `getrusage` would be at least its parent's."""
    status = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1e3


def _alone(transfer: Callable[[str, str], Cost], address: str, path: str) -> Cost:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(transfer, address, path).result()


@contextmanager
def _writing(table: Table) -> Iterator[None]:
    """Write up to 20,000 rows per second until the block ends."""
    stop = Event()
    rows = ROWS.rows(_BURST, np.random.default_rng(1))
    burst = [{name: values[place] for name, values in rows.items()} for place in range(_BURST)]

    def write() -> None:
        with table.writer() as writer:
            while not stop.wait(_PAUSE_S):
                for row in burst:
                    writer.append(row)

    thread = Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def main(*, rounds: int = ROUNDS) -> None:
    """Measure and print.

    Args:
        rounds: measurements.
    """
    measure(rounds).show(Console(width=160))


if __name__ == "__main__":
    run_app(new_app("python -m benchmarks.transfers", __doc__, main))
