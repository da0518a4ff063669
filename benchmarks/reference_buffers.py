"""Time of a learner step compared with buffers like those in notebooks, by number of rows.

    python -m benchmarks.reference_buffers [--rows 1000 10000] [--picture FILE]

The service runs in a separate process and is used through a sampler; the buffers are in the learner's process.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts import Parameter
from replay_client import ReplayClient
from replay_proto.command_line import new_app, run_app
from rich.console import Console

from benchmarks.contestants import ROUNDS, Window, take_turns
from benchmarks.learner_step import sampler_steps, us_per_step
from benchmarks.notebook_buffers import BUFFERS, NotebookBuffer, Transition
from benchmarks.pictures import draw_growth
from benchmarks.report import Section, spread
from benchmarks.service import full_table, running_server
from benchmarks.workloads import CARTPOLE, Workload

ROWS = (1_000, 10_000, 100_000, 1_000_000)
BATCH_SIZES = (32, 256)
BACKENDS = ("sum_tree", "rank")
PREFETCH = 3
ALPHA = 0.6
WINDOW_S = 0.5
WARM_UP_S = 0.2
PICTURE = "reference-buffers.png"

Times = dict[str, dict[str, dict[int, list[float]]]]
"""Microseconds per step in each round, by batch size, contestant and number of rows."""


def transitions(workload: Workload, rng: np.random.Generator) -> list[Transition]:
    """Return random rows of a workload as tuples, enough to fill its table."""
    columns = workload.rows(workload.capacity, rng)
    return list(zip(*columns.values(), strict=True))


def notebook_steps(buffer: NotebookBuffer, batch_size: int) -> Window:
    """Return a function that measures steps: draw rows from a buffer, and set their priorities."""
    rng = np.random.default_rng(1)

    def step() -> None:
        batch = buffer.sample(batch_size, rng)
        buffer.update(batch.places, (rng.random(batch_size) + 0.1).tolist())

    return lambda window_s: us_per_step(step, window_s)


def measure_rows(rows: int, rounds: int, window_s: float) -> Mapping[int, Mapping[str, list[float]]]:
    """Measure with this many rows; return microseconds per step in each round, by batch size and contestant."""
    rng = np.random.default_rng(0)
    base = dataclasses.replace(CARTPOLE, capacity=rows)
    times = {}
    with ExitStack() as stack:
        address, _ = stack.enter_context(running_server())
        client = stack.enter_context(ReplayClient(address))
        tables = {
            backend: full_table(client, dataclasses.replace(base, name=f"{backend}-{rows}"), backend)
            for backend in BACKENDS
        }
        held, priorities = transitions(base, rng), (rng.random(rows) + 0.1).tolist()
        buffers = [kind(held, priorities, ALPHA) for kind in BUFFERS]
        for batch_size in BATCH_SIZES:
            workload = dataclasses.replace(base, batch_size=batch_size)
            contestants: dict[str, Window] = {
                f"service, {backend}": sampler_steps(table, workload, PREFETCH) for backend, table in tables.items()
            }
            contestants |= {buffer.name: notebook_steps(buffer, batch_size) for buffer in buffers}
            times[batch_size] = take_turns(contestants, rounds, window_s, WARM_UP_S)
    return times


def measure(all_rows: Sequence[int] = ROWS, rounds: int = ROUNDS, window_s: float = WINDOW_S) -> tuple[Section, Times]:
    """Measure the buffers and the service; return a section, and the times for its picture."""
    times: Times = {}
    for rows in all_rows:
        for batch_size, contestants in measure_rows(rows, rounds, window_s).items():
            panel = times.setdefault(f"batches of {batch_size}", {})
            for name, values in contestants.items():
                panel.setdefault(name, {})[rows] = values
    return _section(times, all_rows, rounds, window_s), times


def _section(times: Times, all_rows: Sequence[int], rounds: int, window_s: float) -> Section:
    first, last = all_rows[0], all_rows[-1]
    return Section(
        title="Learner step, compared with buffers as written in notebooks",
        command="python -m benchmarks.reference_buffers",
        header=[
            "contestant",
            "step",
            *(f"us per step, {rows:,} rows" for rows in all_rows),
            f"ratio, {last:,} to {first:,} rows",
        ],
        rows=[
            [
                name,
                panel,
                *(spread(by_rows[rows]) for rows in all_rows),
                f"{statistics.median(by_rows[last]) / statistics.median(by_rows[first]):.1f}",
            ]
            for panel, contestants in times.items()
            for name, by_rows in contestants.items()
        ],
        notes=[
            f"With rows of {CARTPOLE.row_bytes} bytes, each step draws by priority, reads the batch and updates its "
            f"priorities. The learner uses the service through a sampler with prefetch {PREFETCH}; the other buffers "
            "(`benchmarks/notebook_buffers.py`) run in the learner's process. "
            f"{rounds} rounds with windows of {window_s:g} s; the contestants take turns."
        ],
        picture=PICTURE,
    )


def main(
    *,
    rows: Annotated[tuple[int, ...], Parameter(consume_multiple=True)] = ROWS,
    rounds: int = ROUNDS,
    window_s: float = WINDOW_S,
    picture: Path = Path("docs/pictures") / PICTURE,
) -> None:
    """Measure, print, draw."""
    section, times = measure(rows, rounds, window_s)
    section.show(Console(width=200))
    draw_growth(times, picture)


if __name__ == "__main__":
    run_app(new_app("python -m benchmarks.reference_buffers", __doc__, main))
