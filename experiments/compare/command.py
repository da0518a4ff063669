"""The command `python -m experiments.compare`: trains missing runs in parallel processes, and shows all results."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from replay_agent.acting.environments import inspect_environment
from replay_agent.processes.signals import StopRequest
from rich.console import Console

from experiments.common.results import ResultFile, hold_to
from experiments.common.run_progress import RunProgress, result_console, run_progress
from experiments.common.server_access import ServerAccess, replay_server
from experiments.compare.defaults import METHODS
from experiments.compare.runs import (
    Curve,
    CurvePoint,
    TrainingKey,
    best_runs,
    curve_file,
    curves_of,
    first_runs,
    sweep_runs,
)
from experiments.compare.settings import CompareSettings
from experiments.compare.summary import draw, groups_of, summary_table
from experiments.compare.training_run import Validations, prepare_process, run_training

LOOK_S: Final = 0.5
"""Interval between checks for a stop request."""


def compare(settings: CompareSettings, stop: StopRequest, console: Console) -> None:
    """Run the missing parts of the comparison.

    Args:
        settings: settings of the comparison.
        stop: set to stop the comparison; finished runs are kept.
        console: shows progress.

    Raises:
        ResultsError: the directory has results of another experiment.
        UnsupportedEnvironmentError: the environment is unsupported.
        LocalServerError: the embedded server could not be started.
        TrainingFailedError: a run failed.
        ReplayError: the server refuses or is unreachable.
    """
    inspect_environment(settings.env)
    directory = settings.directory
    directory.mkdir(parents=True, exist_ok=True)
    hold_to(directory / "conditions.json", settings.conditions())
    results = curve_file(directory / "curves.csv")
    curves = curves_of(results.read())
    if _missing(first_runs(settings) + sweep_runs(settings) + best_runs(settings, curves), curves):
        with _open(settings) as processes:
            _run_all(_Comparison(settings, stop, processes, results), console)
    _show(settings, curves_of(results.read()))


@dataclass(frozen=True)
class _Processes:
    """The processes of training runs, and their server."""

    pool: ProcessPoolExecutor
    server: ServerAccess


@dataclass(frozen=True)
class _Comparison:
    """Everything needed to train runs."""

    settings: CompareSettings
    stop: StopRequest
    processes: _Processes
    results: ResultFile[CurvePoint]

    def curves(self) -> dict[TrainingKey, Curve]:
        """Read all curves so far."""
        return curves_of(self.results.read())


@contextmanager
def _open(settings: CompareSettings) -> Iterator[_Processes]:
    with replay_server(settings.server, settings.directory, keeps_tables=True) as server:
        context = multiprocessing.get_context("spawn")
        stopping = context.Event()
        token = None if server.own is None else server.own.token
        pool = ProcessPoolExecutor(settings.jobs, context, prepare_process, (stopping, token))
        try:
            yield _Processes(pool, server)
        finally:
            stopping.set()
            pool.shutdown(cancel_futures=True)


def _run_all(comparison: _Comparison, console: Console) -> None:
    """Train with the environment's step sizes, then the sweep, then with the best step sizes."""
    settings = comparison.settings
    stages: dict[str, Callable[[], list[TrainingKey]]] = {
        "first": lambda: first_runs(settings),
        "sweep": lambda: sweep_runs(settings),
        "best of sweep": lambda: best_runs(settings, comparison.curves()),
    }
    for title, plan in stages.items():
        runs = list(dict.fromkeys(plan()))
        due = _missing(runs, comparison.curves())
        if due and not comparison.stop.is_set():
            with run_progress(console, f"{settings.title}, {title}", len(runs), len(runs) - len(due)) as progress:
                _run_stage(comparison, due, progress)


def _run_stage(comparison: _Comparison, due: Sequence[TrainingKey], progress: RunProgress) -> None:
    pool, server = comparison.processes.pool, comparison.processes.server
    pending: dict[Future[Validations | None], TrainingKey] = {
        pool.submit(run_training, _training_values(comparison.settings, key, server)): key for key in due
    }
    while pending:
        progress.note(f"{min(len(pending), comparison.settings.jobs)} running")
        done, _ = wait(pending, LOOK_S, FIRST_COMPLETED)
        for future in done:
            key = pending.pop(future)
            validations = future.result()
            if validations is None:
                continue
            points = zip(validations.steps, validations.means, strict=True)
            comparison.results.append([CurvePoint(key, step, mean) for step, mean in points])
            progress.advance(f"{key}: {validations.means[-1]:.1f}")
        if comparison.stop.is_set():
            return


def _missing(runs: Sequence[TrainingKey], curves: dict[TrainingKey, Curve]) -> list[TrainingKey]:
    return [key for key in dict.fromkeys(runs) if key not in curves]


def _training_values(settings: CompareSettings, key: TrainingKey, server: ServerAccess) -> dict[str, Any]:
    """Return the settings of the trainer for one run."""
    contestant = key.contestant
    return {
        **settings.train,
        **METHODS[contestant.method],
        "learning_rate": settings.base_learning_rate * contestant.factor,
        "seed": key.seed,
        "server": server.address,
        "runs_dir": settings.directory / "runs",
        "name": f"{settings.directory.resolve().name}-{key.name}",
        "log_level": "error",
    }


def _show(settings: CompareSettings, curves: dict[TrainingKey, Curve]) -> None:
    groups = groups_of(curves)
    if not groups:
        return
    picture = settings.directory / "curves.png"
    draw(settings.title, groups, picture)
    output = result_console()
    output.print(summary_table(settings.title, groups))
    output.print(f"results: {settings.directory / 'curves.csv'}", soft_wrap=True, highlight=False)
    output.print(f"picture: {picture}", soft_wrap=True, highlight=False)
