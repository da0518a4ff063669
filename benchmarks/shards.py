"""Cost and behaviour of a table over several servers, compared with one server.

    python -m benchmarks.shards

All servers and the learner share this machine, so wall times say less than the learner's CPU time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
from replay_client import ReplayClient, Table
from replay_client.draws import Prefetch
from replay_proto.command_line import new_app, run_app
from rich.console import Console

from benchmarks.contestants import ROUNDS
from benchmarks.learner_step import BETA, touch
from benchmarks.report import Section, spread
from benchmarks.service import running_server
from benchmarks.workloads import CARTPOLE

SETTINGS: tuple[tuple[int, Prefetch], ...] = ((1, 3), (3, 3), (1, 16), (4, 16))
"""Servers, and batches in flight; each setting is compared with the one server before it."""
WINDOW_S = 1.0
_ROWS = 1 << 16
_WORKLOAD = replace(CARTPOLE, capacity=_ROWS)
_AT_ONCE = 1024
_US_PER_S = 1e6


def started(stack: ExitStack, servers: int, *flags: str) -> tuple[ReplayClient, Table]:
    """Start servers that share a table, and fill it."""
    addresses = [stack.enter_context(running_server(*flags))[0] for _ in range(servers)]
    client = stack.enter_context(ReplayClient(",".join(addresses)))
    table = client.create_table(_WORKLOAD.name, columns=_WORKLOAD.columns, capacity=_ROWS)
    rng = np.random.default_rng(0)
    rows = _WORKLOAD.rows(_AT_ONCE, rng)
    for _ in range(0, _ROWS, _AT_ONCE):
        table.insert(rows, priorities=rng.random(_AT_ONCE) + 0.1)
    return client, table


def steps(table: Table, prefetch: Prefetch) -> Callable[[float], tuple[float, float]]:
    """Return a function that measures wall and CPU time of a learner step in microseconds, in a window of seconds."""
    rng = np.random.default_rng(1)

    def window(window_s: float) -> tuple[float, float]:
        with table.sampler(_WORKLOAD.batch_size, beta=BETA, prefetch=prefetch) as sampler:
            for _ in range(20):
                next(sampler)
            count, began, cpu_s = 0, time.perf_counter(), time.process_time()
            while (elapsed_s := time.perf_counter() - began) < window_s:
                batch = next(sampler)
                touch(batch)
                sampler.update_priorities(batch, rng.random(_WORKLOAD.batch_size) + 0.1)
                count += 1
            return elapsed_s / count * _US_PER_S, (time.process_time() - cpu_s) / count * _US_PER_S

    return window


def measure(rounds: int = ROUNDS, window_s: float = WINDOW_S) -> Section:
    """Measure learner steps over one and several servers in turn."""
    with ExitStack() as stack:
        tables = {count: started(stack, count)[1] for count in sorted({servers for servers, _ in SETTINGS})}
        windows = [steps(tables[servers], prefetch) for servers, prefetch in SETTINGS]
        times = [[window(window_s) for window in windows] for _ in range(rounds)]
    rows = []
    for number, (servers, prefetch) in enumerate(SETTINGS):
        of_one = number - number % 2
        wall, cpu = ([turn[number][part] for turn in times] for part in (0, 1))
        ratios = [statistics.median(turn[number][part] / turn[of_one][part] for turn in times) for part in (0, 1)]
        rows.append([str(servers), str(prefetch), spread(wall), spread(cpu), *(f"{ratio:.2f}" for ratio in ratios)])
    return Section(
        title="Tables over several servers: a learner step",
        command="python -m benchmarks.shards",
        header=["servers", "prefetch", "wall, us", "learner's CPU, us", "wall / one server", "CPU / one server"],
        rows=rows,
        notes=["CartPole rows, batches of 256. Ratios are medians of those within each round."],
    )


def main(*, rounds: int = ROUNDS, window_s: float = WINDOW_S) -> None:
    """Measure and print.

    Args:
        rounds: how often each setting is measured.
        window_s: seconds of each measurement.
    """
    measure(rounds, window_s).show(Console(width=160))


if __name__ == "__main__":
    run_app(new_app("python -m benchmarks.shards", __doc__, main))
