"""The command `python -m experiments.cliffwalk`: executes missing runs, then shows and plots all results."""

from __future__ import annotations

from replay_agent.processes.signals import StopRequest
from rich.console import Console

from experiments.cliffwalk.q_learning import Representation
from experiments.cliffwalk.runs import (
    RunResult,
    WalkKey,
    conditions,
    outstanding,
    planned,
    result_file,
    run,
)
from experiments.cliffwalk.settings import CliffwalkSettings
from experiments.cliffwalk.summary import draw, summarize, summary_table
from experiments.common.results import ResultFile, hold_to
from experiments.common.run_progress import result_console, run_progress
from experiments.common.server_access import replay_server


def cliffwalk(settings: CliffwalkSettings, stop: StopRequest, console: Console) -> None:
    """Run the missing parts of the experiment.

    Args:
        settings: settings of the experiment.
        stop: set to stop the experiment; results so far are kept.
        console: shows progress.

    Raises:
        ResultsError: the directory has results of another experiment.
        LocalServerError: the embedded server could not be started.
        ReplayError: the server refuses or is unreachable.
    """
    settings.out.mkdir(parents=True, exist_ok=True)
    hold_to(settings.out / "conditions.json", conditions())
    results = result_file(settings.out / "cliffwalk.csv")
    plan = planned(settings)
    due = outstanding(plan, results.read(), settings.max_run_s)
    if due:
        _run_all(settings, due, len(plan), results, stop, console)
    found = results.read()
    if found:
        _show(settings, found)


def _run_all(
    settings: CliffwalkSettings,
    due: list[WalkKey],
    total: int,
    results: ResultFile[RunResult],
    stop: StopRequest,
    console: Console,
) -> None:
    with (
        replay_server(settings.server, settings.out) as server,
        server.connect() as client,
        run_progress(console, "cliffwalk", total, total - len(due)) as progress,
    ):
        for key in due:
            progress.note(str(key))
            result = run(key, client, settings.max_run_s, stop.is_set)
            if result is None:
                return
            results.append([result])
            progress.advance(f"{key}: {'' if result.learned else 'at least '}{result.updates:,} updates")


def _show(settings: CliffwalkSettings, results: list[RunResult]) -> None:
    curves = summarize(results)
    picture = settings.out / "cliffwalk.png"
    draw(curves, picture)
    output = result_console()
    for representation in Representation:
        if curves.get(representation):
            output.print(summary_table(curves, representation))
    output.print(f"results: {settings.out / 'cliffwalk.csv'}", soft_wrap=True, highlight=False)
    output.print(f"picture: {picture}", soft_wrap=True, highlight=False)
