"""Runs of the Blind Cliffwalk experiment and their results."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from replay_client import ReplayClient

from experiments.cliffwalk.q_learning import INITIAL_STD, LEARNED_ERROR, STEP_SIZE, QLearner, Representation
from experiments.cliffwalk.replays import BACKENDS, ORACLE_GAIN, Method, open_replay
from experiments.cliffwalk.settings import CliffwalkSettings
from experiments.cliffwalk.walk import Cliffwalk
from experiments.common.results import ResultFile

LOOK_UP_UPDATES: Final = 256
"""Number of updates between checks of the clock and of ``should_stop``."""


@dataclass(frozen=True)
class WalkKey:
    """Identifies a run of the experiment."""

    representation: Representation
    method: Method
    states: int
    seed: int

    @property
    def table(self) -> str:
        """Name of the run's table."""
        return f"cliffwalk-{self.representation}-{self.method}-{self.states}-{self.seed}"

    def __str__(self) -> str:
        """Description of the run for messages."""
        return f"{self.representation}, {self.method}, {self.states} states, seed {self.seed}"


@dataclass(frozen=True)
class RunResult:
    """Result of a run."""

    key: WalkKey
    updates: int
    """Number of updates."""
    learned: bool
    """Whether the values were learned; otherwise the run hit its time limit."""
    seconds: float
    """Duration in seconds."""


def run(
    key: WalkKey,
    client: ReplayClient,
    max_run_s: float,
    should_stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> RunResult | None:
    """Learn until the values are learned or the time is up.

    With all methods, runs with the same seed and number of states start with the same parameters. Their memories
    contain the same transitions in the same order.

    Args:
        key: identifies the run.
        client: a client of the server.
        max_run_s: seconds until the run is aborted.
        should_stop: returns whether to stop.
        clock: returns monotonic seconds.

    Returns:
        The result; None if stopped early.

    Raises:
        ReplayError: the server refuses or is unreachable.
    """
    walk = Cliffwalk(key.states)
    parameters, memory = np.random.SeedSequence([key.seed, key.states]).spawn(2)
    learner = QLearner(walk, key.representation, np.random.default_rng(parameters))
    start = clock()
    updates = 0
    with open_replay(key.method, client, walk, key.table, np.random.default_rng(memory)) as replay:
        while not learner.is_learned:
            if updates % LOOK_UP_UPDATES == 0:
                if should_stop():
                    return None
                if clock() - start > max_run_s:
                    break
            replay.write_back(learner.update(replay.next(learner)))
            updates += 1
    return RunResult(key, updates, learner.is_learned, clock() - start)


def planned(settings: CliffwalkSettings) -> list[WalkKey]:
    """Return all runs that the settings request, shortest first."""
    return [
        WalkKey(representation, method, states, seed)
        for states in sorted(set(settings.states))
        for representation in settings.representations
        for method in settings.methods
        for seed in settings.seeds_of(states)
    ]


def outstanding(plan: Sequence[WalkKey], results: Sequence[RunResult], max_run_s: float) -> list[WalkKey]:
    """Return the planned runs that have no result, or that a shorter time limit aborted earlier."""
    latest = {result.key: result for result in results}
    return [key for key in plan if key not in latest or (not latest[key].learned and latest[key].seconds < max_run_s)]


def conditions() -> dict[str, Any]:
    """Return the conditions that affect results, besides the key of a run."""
    return {
        "step_size": STEP_SIZE,
        "initial_std": INITIAL_STD,
        "learned_error": LEARNED_ERROR,
        "oracle_gain": ORACLE_GAIN,
        "backends": {str(method): [backend, dict(parameters)] for method, (backend, parameters) in BACKENDS.items()},
    }


def result_file(path: Path) -> ResultFile[RunResult]:
    """Return the CSV file of results."""
    fields = ["representation", "method", "states", "transitions", "seed", "updates", "learned", "seconds"]
    return ResultFile(path, fields, _parse, _to_row)


def _to_row(result: RunResult) -> dict[str, object]:
    return {
        **dataclasses.asdict(result.key),
        "transitions": Cliffwalk(result.key.states).memory_size,
        "updates": result.updates,
        "learned": int(result.learned),
        "seconds": f"{result.seconds:.3f}",
    }


def _parse(row: Mapping[str, str]) -> RunResult:
    key = WalkKey(Representation(row["representation"]), Method(row["method"]), int(row["states"]), int(row["seed"]))
    return RunResult(key, int(row["updates"]), bool(int(row["learned"])), float(row["seconds"]))
