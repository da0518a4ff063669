"""Compares learner steps, inserts and starts of this checkout with those of another, such as an earlier version.

    git worktree add --detach ../before v0.1.0
    python -m benchmarks.paired ../before cartpole

If copies of the same code are started one after another, their times differ by up to 15 %, and the first one is the
slowest. Therefore, everything is restarted several times, in every order, and ratios are computed within each start.
Both checkouts use the Python environment of this one.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from replay_proto.command_line import new_app, run_app
from rich.console import Console
from rich.progress import track

from benchmarks.report import Section

RESTARTS = 12
ROUNDS = 8
WINDOW_S = 0.25
_CAPACITIES = {"cartpole": 1 << 18, "atari": 1 << 14}
"""Number of rows: more than fit into CPU caches, and few enough to rewrite at each start."""
_HERE = Path(__file__).parent.parent
_CHILD = Path(__file__).parent / "peers" / "tree_steps.py"
_PACKAGES = ("agent", "client", "proto", "server")


class Checkout:
    """One start of a checkout: a server with a full table, and its clients."""

    def __init__(self, stack: ExitStack, tree: Path, workload: str) -> None:
        """Start a process; `ready` waits for it. When the stack is closed, the process's input ends and it exits."""
        path = os.pathsep.join(map(str, (tree, *(tree / package for package in _PACKAGES))))
        self._process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, str(_CHILD), workload, str(_CAPACITIES[workload])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=tree,
                env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
            )
        )

    def ready(self) -> list[str]:
        """Wait until the process is ready to measure, and return the names of its contestants."""
        names: list[str] = json.loads(self._answer())
        return names

    def us_per_step(self, name: str, window_s: float) -> float:
        """Measure a contestant for a number of seconds; return microseconds per step."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, window_s]) + "\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended")
        return line


def one_start(trees: Sequence[Path], order: Sequence[int], workload: str) -> dict[str, list[float]]:
    """Start the checkouts in an order and measure them in turn.

    Returns:
        By contestant: the median microseconds per step of each checkout, in the order of ``trees``.
    """
    with ExitStack() as stack:
        checkouts = {index: Checkout(stack, trees[index], workload) for index in order}
        (names, *_) = [checkouts[index].ready() for index in order]
        times: dict[str, dict[int, list[float]]] = {name: {index: [] for index in order} for name in names}
        for turn in range(ROUNDS):
            for name in names:
                for index in order if turn % 2 else reversed(order):
                    times[name][index].append(checkouts[index].us_per_step(name, WINDOW_S))
    return {name: [statistics.median(of[index]) for index in range(len(trees))] for name, of in times.items()}


def compared(medians: Sequence[Sequence[float]]) -> list[str]:
    """Compare pairs of medians.

    Returns:
        The median of the first elements and that of the second ones, then the geometric mean of the ratio first /
        second with its standard error.
    """
    ours, theirs = zip(*medians, strict=True)
    logs = [math.log(mine / other) for mine, other in medians]
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    return [
        f"{statistics.median(ours):.0f}",
        f"{statistics.median(theirs):.0f}",
        f"{math.exp(statistics.mean(logs)):.3f} +- {error:.3f}",
    ]


def measure(before: Path, workload: str, restarts: int = RESTARTS) -> Section:
    """Measure this checkout and another."""
    trees = (_HERE, before.resolve())
    orders = list(itertools.permutations(range(len(trees))))
    random.Random(0).shuffle(orders)
    starts = [
        one_start(trees, orders[number % len(orders)], workload)
        for number in track(range(restarts), description=f"{workload}, starts")
    ]
    return Section(
        title=f"This checkout over {before.name}, {workload}, {_CAPACITIES[workload]} rows",
        command=f"python -m benchmarks.paired {before} {workload} --restarts {restarts}",
        header=["contestant", "us per step, insert, row or start", f"us, {before.name}", "ratio"],
        rows=[[name, *compared([start[name] for start in starts])] for name in starts[0]],
        notes=["Medians; the ratio is the geometric mean over all starts, with its standard error."],
    )


def main(before: Path, workload: Literal["cartpole", "atari"], /, *, restarts: int = RESTARTS) -> None:
    """Measure one workload.

    Args:
        before: the other checkout.
        workload: one of them.
        restarts: how often everything is started again, at least 2.
    """
    measure(before, workload, restarts).show(Console())


if __name__ == "__main__":
    run_app(new_app("python -m benchmarks.paired", __doc__, main))
