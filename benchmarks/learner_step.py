"""Time per learner step, through `table.sampler()` and through single calls.

python -m benchmarks.learner_step atari --prefetch 3
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
from replay_client import Batch, ReplayClient, Table

from benchmarks.service import full_table, running_server
from benchmarks.workloads import WORKLOADS, Workload

WINDOW_S = 5.0
WINDOWS = 5
_US_PER_S = 1e6


def touch(batch: Batch) -> int:
    """Read a byte of every row of every column: a batch that nobody looked at has not arrived."""
    return sum(int(column.reshape(len(column), -1)[:, 0].sum()) for column in batch.columns.values())


def windows_us(step: Callable[[], None], windows: int = WINDOWS, window_s: float = WINDOW_S) -> list[float]:
    """Wall time over steps, in microseconds, in each of some windows."""
    times = []
    for _ in range(100):
        step()
    for _ in range(windows):
        steps, began = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - began) < window_s:
            step()
            steps += 1
        times.append(elapsed / steps * _US_PER_S)
    return times


def sampler_step(table: Table, workload: Workload, prefetch: int, windows: int = WINDOWS) -> list[float]:
    """Microseconds per step with so many batches in flight."""
    rng = np.random.default_rng(1)
    with table.sampler(workload.batch_size, beta=0.4, prefetch=prefetch) as sampler:

        def step() -> None:
            batch = next(sampler)
            touch(batch)
            sampler.update_priorities(batch.keys, rng.random(workload.batch_size) + 0.1)

        return windows_us(step, windows)


def single_calls(table: Table, workload: Workload, windows: int = WINDOWS) -> list[float]:
    """Microseconds per step of `sample` and `update_priorities`, one call each."""
    rng = np.random.default_rng(1)

    def step() -> None:
        batch = table.sample(workload.batch_size, beta=0.4)
        touch(batch)
        table.update_priorities(batch.keys, rng.random(workload.batch_size) + 0.1)

    return windows_us(step, windows)


def main() -> None:
    """Measure one workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--backend", default="sum_tree")
    parser.add_argument("--prefetch", type=int, nargs="+", default=[1, 3, 16])
    parser.add_argument("--same-host", choices=["on", "off"], default="on")
    parser.add_argument("--windows", type=int, default=WINDOWS)
    options = parser.parse_args()
    workload = WORKLOADS[options.workload]
    with (
        running_server() as (address, _),
        ReplayClient(address, same_host=options.same_host == "on") as client,
    ):
        table = full_table(client, workload, options.backend)
        for prefetch in options.prefetch:
            times = sampler_step(table, workload, prefetch, options.windows)
            print(f"sampler, prefetch {prefetch:2d}: {statistics.median(times):7.1f} us", [round(t) for t in times])
        times = single_calls(table, workload, options.windows)
        print(f"single calls:         {statistics.median(times):7.1f} us", [round(t) for t in times])


if __name__ == "__main__":
    main()
