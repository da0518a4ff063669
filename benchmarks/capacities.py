"""Time per learner step by backend and number of rows.

python -m benchmarks.capacities
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from contextlib import ExitStack

from replay_client import ReplayClient
from rich.console import Console

from benchmarks.contestants import ROUNDS, WINDOW_S, Window, take_turns
from benchmarks.learner_step import sampler_steps
from benchmarks.report import Section, spread
from benchmarks.service import full_table, running_server
from benchmarks.workloads import CARTPOLE

CAPACITIES = (100_000, 1 << 20, 10_000_000)
BACKENDS = ("sum_tree", "rank", "uniform")
PREFETCH = 3


def measure(rounds: int = ROUNDS, window_s: float = WINDOW_S) -> Section:
    """Measure all backends and sizes in turn, so that other load on the machine affects them alike."""
    with ExitStack() as stack:
        contestants: dict[str, Window] = {}
        for capacity in CAPACITIES:
            workload = dataclasses.replace(CARTPOLE, capacity=capacity)
            for backend in BACKENDS:
                address, _ = stack.enter_context(running_server())
                table = full_table(stack.enter_context(ReplayClient(address)), workload, backend)
                contestants[_name(backend, capacity)] = sampler_steps(table, workload, PREFETCH)
        times = take_turns(contestants, rounds, window_s)
    smallest, middle, largest = CAPACITIES
    return Section(
        title=f"Learner step by backend and number of rows, cartpole, prefetch {PREFETCH}",
        command="python -m benchmarks.capacities",
        header=[
            "backend",
            *(f"{capacity:,} rows, us" for capacity in CAPACITIES),
            f"ratio, {largest:,} to {smallest:,} rows",
            f"ratio to sum_tree, {middle:,} rows",
        ],
        rows=[
            [
                backend,
                *(spread(times[_name(backend, capacity)]) for capacity in CAPACITIES),
                _ratio(times[_name(backend, largest)], times[_name(backend, smallest)]),
                _ratio(times[_name(backend, middle)], times[_name("sum_tree", middle)]),
            ]
            for backend in BACKENDS
        ],
        notes=[
            f"{rounds} rounds with windows of {window_s:g} s; the tables take turns, each in its own server. "
            "Ratios are ratios of medians, with the smallest and largest ratio of a round in parentheses."
        ],
    )


def _name(backend: str, capacity: int) -> str:
    return f"{backend}, {capacity:,} rows"


def _ratio(times: Sequence[float], others: Sequence[float]) -> str:
    """Return the ratio of two contestants' median times. The smallest and largest ratio of single rounds follow."""
    by_round = [time / other for time, other in zip(times, others, strict=True)]
    median = statistics.median(times) / statistics.median(others)
    return f"{median:.2f} ({min(by_round):.2f} to {max(by_round):.2f})"


def main() -> None:
    """Measure."""
    measure().show(Console(width=140))


if __name__ == "__main__":
    main()
