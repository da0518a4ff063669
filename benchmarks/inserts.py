"""Inserts through a writer, row by row: the actor's time per row, and the throughput.

python -m benchmarks.inserts cartpole
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Literal

import numpy as np
from replay_client import ReplayClient, Table
from replay_proto.command_line import new_app, run_app
from rich.console import Console

from benchmarks.report import Section, spread
from benchmarks.service import full_table, running_server
from benchmarks.workloads import WORKLOADS, Workload

ROUNDS = 5
WINDOW_S = 4.0
_BURST_BYTES = 4 << 20
_ROWS = 256


def append_us(table: Table, workload: Workload) -> list[float]:
    """Return the actor's time per row in microseconds, by burst. Bursts are so small that `append` never waits."""
    rows = _separate_rows(workload)
    burst = max(16, min(4096, _BURST_BYTES // table.schema.row_bytes))
    times = []
    with table.writer() as writer:
        for _ in range(50):
            began = time.perf_counter()
            for i in range(burst):
                writer.append(rows[i % _ROWS])
            times.append((time.perf_counter() - began) / burst * 1e6)
            writer.flush()
    return times


def rows_per_second(table: Table, workload: Workload, window_s: float) -> float:
    """Return the throughput of one busy writer in rows per second."""
    rows = _separate_rows(workload)
    with table.writer() as writer:
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < window_s:
            for row in rows:
                writer.append(row)
            count += _ROWS
        writer.flush()
        return count / (time.perf_counter() - began)


def measure(workload: Workload, rounds: int = ROUNDS, window_s: float = WINDOW_S) -> Section:
    """Measure a workload."""
    with running_server() as (address, _), ReplayClient(address) as client:
        table = full_table(client, workload)
        appends = append_us(table, workload)
        arriving = [rows_per_second(table, workload, window_s) for _ in range(rounds)]
    bytes_per_s = statistics.median(arriving) * workload.row_bytes
    return Section(
        title=f"Inserting, {workload.name}: one writer, row by row, into a full ring",
        command=f"python -m benchmarks.inserts {workload.name}",
        header=["figure", "value"],
        rows=[
            ["time of `append` in short bursts, us per row", spread(appends)],
            ["rows arriving per second", spread(arriving)],
            ["MB arriving per second", f"{bytes_per_s / 1e6:.0f}"],
        ],
    )


def _separate_rows(workload: Workload) -> list[dict[str, Any]]:
    columns = workload.rows(_ROWS, np.random.default_rng(2))
    scalars = {name for name, values in columns.items() if values.ndim == 1}
    return [
        {name: values[i].item() if name in scalars else values[i] for name, values in columns.items()}
        for i in range(_ROWS)
    ]


def main(workload: Literal["cartpole", "atari"], /) -> None:
    """Measure one workload."""
    measure(WORKLOADS[workload]).show(Console())


if __name__ == "__main__":
    run_app(new_app("python -m benchmarks.inserts", __doc__, main))
