"""Time per learner step by backend and number of rows.

python -m benchmarks.capacities
"""

from __future__ import annotations

import dataclasses
import statistics
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
    """Measure each backend at each size, in turn."""
    times: dict[tuple[str, int], list[float]] = {}
    for capacity in CAPACITIES:
        workload = dataclasses.replace(CARTPOLE, capacity=capacity)
        with ExitStack() as stack:
            contestants: dict[str, Window] = {}
            for backend in BACKENDS:
                address, _ = stack.enter_context(running_server())
                table = full_table(stack.enter_context(ReplayClient(address)), workload, backend)
                contestants[backend] = sampler_steps(table, workload, PREFETCH)
            for backend, values in take_turns(contestants, rounds, window_s).items():
                times[backend, capacity] = values
    medians = {place: statistics.median(values) for place, values in times.items()}
    smallest, middle, largest = CAPACITIES
    return Section(
        title=f"Learner step by backend and number of rows, cartpole, prefetch {PREFETCH}",
        command="python -m benchmarks.capacities",
        header=[
            "backend",
            *(f"{capacity:,} rows, us" for capacity in CAPACITIES),
            "10^7 over 10^5",
            f"over sum_tree at {middle:,}",
        ],
        rows=[
            [
                backend,
                *(spread(times[backend, capacity]) for capacity in CAPACITIES),
                f"{medians[backend, largest] / medians[backend, smallest]:.2f}",
                f"{medians[backend, middle] / medians['sum_tree', middle]:.2f}",
            ]
            for backend in BACKENDS
        ],
        notes=[f"Windows of {window_s:g} s, {rounds} rounds; the backends in turn, each in a server of its own."],
    )


def main() -> None:
    """Measure."""
    measure().show(Console(width=140))


if __name__ == "__main__":
    main()
