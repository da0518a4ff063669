"""Time of a learner step (draw a batch by priority, write its new priorities), compared with peers.

    python -m benchmarks.learner_step atari [--peers FOLDER]

Server and client are separate processes, the table is full, and every row of every batch is read.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import numpy as np
from replay_client import Batch, ReplayClient, Table
from replay_client._rows.buffers import ColumnBuffers
from replay_client.draws import Prefetch
from replay_proto.command_line import new_app, run_app
from rich.console import Console

from benchmarks.contestants import ROUNDS, WINDOW_S, Window, start_peers, take_turns
from benchmarks.report import Section, spread
from benchmarks.service import full_table, running_server
from benchmarks.workloads import WORKLOADS, Workload

PREFETCHES = (1, 3, 16)
BETA = 0.4
_US_PER_S = 1e6


def touch(batch: Batch) -> int:
    """Read an element of every row of every column, to ensure that the batch has arrived."""
    return sum(int(column.reshape(len(column), -1)[:, 0].sum()) for column in batch.columns.values())


def us_per_step(step: Callable[[], None], window_s: float) -> float:
    """Return the mean wall time of a step in microseconds, over a window of this many seconds."""
    steps, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < window_s:
        step()
        steps += 1
    return elapsed / steps * _US_PER_S


def sampler_steps(table: Table, workload: Workload, prefetch: Prefetch) -> Window:
    """Return a function that measures steps through a sampler with ``prefetch`` batches in flight."""
    rng = np.random.default_rng(1)

    def window(window_s: float) -> float:
        with table.sampler(workload.batch_size, beta=BETA, prefetch=prefetch) as sampler:

            def step() -> None:
                batch = next(sampler)
                touch(batch)
                sampler.update_priorities(batch, rng.random(workload.batch_size) + 0.1)

            return us_per_step(step, window_s)

    return window


def single_call_steps(table: Table, workload: Workload) -> Window:
    """Return a function that measures steps that each call `sample` and `update_priorities` once."""
    rng = np.random.default_rng(1)

    def step() -> None:
        batch = table.sample(workload.batch_size, beta=BETA)
        touch(batch)
        table.update_priorities(batch, rng.random(workload.batch_size) + 0.1)

    return lambda window_s: us_per_step(step, window_s)


def gathers(table: Table, workload: Workload) -> Window:
    """Return a function that measures copying random rows from the server's files, a lower bound for learner steps."""
    description = table.describe()
    table.sample(1, beta=BETA)  # proves that the files are the server's
    rows = table._data_path.near.mapped
    if rows is None:
        raise RuntimeError("the server's files cannot be read from here")
    buffers, rng = ColumnBuffers(description.schema), np.random.default_rng(1)

    def step() -> None:
        keys = rng.integers(description.inserted - description.size, description.inserted, workload.batch_size)
        rows.gather(keys, buffers.blank(workload.batch_size))

    return lambda window_s: us_per_step(step, window_s)


def measure(workload: Workload, peers: Path, rounds: int = ROUNDS, window_s: float = WINDOW_S) -> Section:
    """Measure the service and its peers on a workload."""
    with ExitStack() as stack:
        address, _ = stack.enter_context(running_server())
        near = stack.enter_context(ReplayClient(address))
        far = stack.enter_context(ReplayClient(address, same_host=False))
        full_table(near, workload)
        contestants: dict[str, Window] = {
            f"sampler, prefetch {prefetch}": sampler_steps(near.table(workload.name), workload, prefetch)
            for prefetch in (*PREFETCHES, "auto")
        }
        contestants["sampler, prefetch 3, rows over gRPC"] = sampler_steps(far.table(workload.name), workload, 3)
        contestants["sample and update_priorities, single calls"] = single_call_steps(
            near.table(workload.name), workload
        )
        contestants["gathering the rows, nothing else"] = gathers(near.table(workload.name), workload)
        contestants |= start_peers(stack, workload.name, peers)
        times = take_turns(contestants, rounds, window_s)
    others = [name for name in times if not name.startswith(("sampl", "gather"))]
    medians = {name: statistics.median(values) for name, values in times.items()}
    rows = [
        [name, spread(values), *(f"{medians[name] / medians[other]:.3f}" for other in others)]
        for name, values in times.items()
    ]
    return Section(
        title=f"Learner step, {workload.name}: batches of {workload.batch_size}, capacity {workload.capacity}",
        command=f"python -m benchmarks.learner_step {workload.name}",
        header=["contestant", "us per step", *(f"ratio to {other}" for other in others)],
        rows=rows,
        notes=[f"{rounds} rounds with windows of {window_s:g} s; the contestants take turns."],
        times_us=times,
    )


def main(
    workload: Literal["cartpole", "atari"],
    /,
    *,
    peers: Path = Path(".peers"),
    rounds: int = ROUNDS,
    window_s: float = WINDOW_S,
) -> None:
    """Measure one workload.

    Args:
        workload: one of them.
        peers: folder into which benchmarks/peers/install.sh has installed the peers.
        rounds: measurements of each contestant.
        window_s: seconds of a measurement.
    """
    measure(WORKLOADS[workload], peers, rounds, window_s).show(Console())


if __name__ == "__main__":
    run_app(new_app("python -m benchmarks.learner_step", __doc__, main))
