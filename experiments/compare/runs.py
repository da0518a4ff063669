"""Runs of the comparison and their learning curves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from experiments.common.results import ResultFile
from experiments.compare.defaults import PAPER_FACTORS, SWEEP_FACTORS, SWEEP_SEED, ReplayMethod
from experiments.compare.settings import CompareSettings


@dataclass(frozen=True)
class Contestant:
    """A method with a step size."""

    method: ReplayMethod
    factor: float
    """Its step size, relative to uniform replay."""

    def __str__(self) -> str:
        """Description of the contestant for messages."""
        return f"{self.method}, step size x {self.factor:g}"


@dataclass(frozen=True)
class TrainingKey:
    """One run."""

    contestant: Contestant
    seed: int

    @property
    def name(self) -> str:
        """Name of its directory and table."""
        return f"{self.contestant.method}-{self.contestant.factor:g}-seed{self.seed}"

    def __str__(self) -> str:
        """Description of the run for messages."""
        return f"{self.contestant}, seed {self.seed}"


@dataclass(frozen=True)
class CurvePoint:
    """One validation of a run."""

    key: TrainingKey
    step: int
    """Environment steps so far."""
    mean_return: float
    """Mean return of greedy episodes on separate seeds."""


Curve = Sequence[CurvePoint]
PAPER: Final[Sequence[Contestant]] = [Contestant(method, factor) for method, factor in PAPER_FACTORS.items()]


def first_runs(settings: CompareSettings) -> list[TrainingKey]:
    """Return the runs with the environment's step sizes, ordered by seed so that partial results are comparable."""
    contestants = [Contestant(method, settings.defaults.factors[method]) for method in settings.methods]
    return [TrainingKey(contestant, seed) for seed in range(settings.seed_count) for contestant in contestants]


def sweep_runs(settings: CompareSettings) -> list[TrainingKey]:
    """Return the runs of the sweep: every method with every step size, on separate seeds."""
    seeds = range(SWEEP_SEED, SWEEP_SEED + settings.sweep_seed_count)
    return [
        TrainingKey(Contestant(method, factor), seed)
        for seed in seeds
        for method in settings.methods
        for factor in SWEEP_FACTORS
    ]


def best_runs(settings: CompareSettings, curves: Mapping[TrainingKey, Curve]) -> list[TrainingKey]:
    """Return the runs of each method with its best step size in the sweep, by mean return over training."""
    return [TrainingKey(best, seed) for seed in range(settings.seed_count) for best in best_of_sweep(curves).values()]


def best_of_sweep(curves: Mapping[TrainingKey, Curve]) -> dict[ReplayMethod, Contestant]:
    """Return the best step size of each method in the sweep. If several are equally good, the largest wins."""
    scores: dict[Contestant, list[float]] = defaultdict(list)
    for key, curve in curves.items():
        if key.seed >= SWEEP_SEED:
            scores[key.contestant].append(float(np.mean([point.mean_return for point in curve])))
    best: dict[ReplayMethod, Contestant] = {}
    for contestant in sorted(scores, key=lambda swept: (np.mean(scores[swept]), swept.factor)):
        best[contestant.method] = contestant
    return best


def curves_of(points: Sequence[CurvePoint]) -> dict[TrainingKey, Curve]:
    """Group points by run."""
    curves: dict[TrainingKey, list[CurvePoint]] = defaultdict(list)
    for point in points:
        curves[point.key].append(point)
    return dict(curves)


def curve_file(path: Path) -> ResultFile[CurvePoint]:
    """Return the CSV file of learning curves."""
    return ResultFile(path, ["method", "step_size_factor", "seed", "step", "mean_return"], _parse, _to_row)


def _to_row(point: CurvePoint) -> dict[str, object]:
    contestant = point.key.contestant
    return {
        "method": contestant.method,
        "step_size_factor": contestant.factor,
        "seed": point.key.seed,
        "step": point.step,
        "mean_return": point.mean_return,
    }


def _parse(row: Mapping[str, str]) -> CurvePoint:
    contestant = Contestant(ReplayMethod(row["method"]), float(row["step_size_factor"]))
    return CurvePoint(TrainingKey(contestant, int(row["seed"])), int(row["step"]), float(row["mean_return"]))
