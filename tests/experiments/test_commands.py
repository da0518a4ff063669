"""The experiment commands, from flags to output files."""

from __future__ import annotations

import csv
import threading
from pathlib import Path
from typing import Final

import pytest
from replay_agent.processes.signals import StopRequest
from replay_agent.settings.train_settings import TrainSettings
from replay_agent.training.checkpoint import checkpoints
from replay_agent.training.run_directory import RunDirectory
from replay_proto.command_line import read_settings
from rich.console import Console
from rich.table import Table

from experiments.cliffwalk.__main__ import main
from experiments.cliffwalk.q_learning import Representation
from experiments.cliffwalk.replays import Method
from experiments.cliffwalk.runs import RunResult, WalkKey, outstanding, result_file
from experiments.cliffwalk.settings import CliffwalkSettings
from experiments.cliffwalk.summary import summarize, summary_table
from experiments.compare.command import compare
from experiments.compare.defaults import ENVIRONMENTS, ReplayMethod
from experiments.compare.runs import (
    Contestant,
    CurvePoint,
    TrainingKey,
    best_of_sweep,
    best_runs,
    curve_file,
    curves_of,
    first_runs,
    sweep_runs,
)
from experiments.compare.settings import CompareSettings
from experiments.compare.summary import groups_of
from experiments.compare.summary import summary_table as compare_table
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

_STARTS_S: Final = 90.0
"""A run is a process of its own, which loads torch."""

PNG = b"\x89PNG"


def lines_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_the_cliffwalk_goes_on_where_it_was_broken_off(server: ServerProcess, tmp_path: Path) -> None:
    flags = ["--states", "2,4", "--seeds", "2", "--server", server.address, "--out", str(tmp_path)]
    assert main(flags) == 0
    path = tmp_path / "cliffwalk.csv"
    whole = path.read_text().splitlines()
    assert len(whole) == 1 + 2 * len(Representation) * len(Method) * 2
    assert (tmp_path / "cliffwalk.png").read_bytes().startswith(PNG)

    path.write_text("\n".join([*whole[:-3], whole[-1][:9]]))
    assert main(flags) == 0
    again = path.read_text().splitlines()
    assert again[:-3] == whole[:-3]
    untimed = [line.rpartition(",")[0] for line in whole[-3:]]
    assert [line.rpartition(",")[0] for line in again[-3:]] == untimed

    assert main(flags) == 0
    assert path.read_text().splitlines() == again


def test_what_cannot_be_run_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--states", "2,1", "--out", str(tmp_path)])
    assert end.value.code == 2
    assert "--states.1: input should be greater than or equal to 2, got '1'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "Usage: python -m experiments.cliffwalk" in capsys.readouterr().out


def result(method: Method, updates: int, seed: int, *, learned: bool = True, seconds: float = 5.0) -> RunResult:
    return RunResult(WalkKey(Representation.TABULAR, method, 3, seed), updates, learned, seconds)


def test_runs_that_were_given_up_make_the_median_a_lower_bound_if_they_decide_it() -> None:
    updates = [10, 20, 30]
    learned = [result(Method.RANK, count, seed) for seed, count in enumerate(updates)]
    long = [*learned[:2], result(Method.RANK, 30, 2, learned=False)]
    short = [*learned[1:], result(Method.RANK, 10, 0, learned=False)]
    for results, at_least in ((learned, False), (long, False), (short, True)):
        point = summarize(results)[Representation.TABULAR][Method.RANK][3]
        assert (point.median, point.lowest, point.highest, point.at_least) == (20, 10, 30, at_least)


def test_a_run_that_was_given_up_is_run_again_only_if_it_gets_more_time() -> None:
    given_up = result(Method.RANK, 10, 0, learned=False, seconds=5.0)
    assert outstanding([given_up.key], [given_up], max_run_s=4.0) == []
    assert outstanding([given_up.key], [given_up], max_run_s=6.0) == [given_up.key]


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_the_settings_of_every_environment_are_ones_that_the_trainer_takes(env: str) -> None:
    settings = CompareSettings(env=env)
    trained = TrainSettings(**settings.train)
    assert (trained.solved_return, trained.env) == (None, env)


def test_the_best_step_size_is_that_of_the_sweep_and_not_of_the_runs_compared() -> None:
    settings = CompareSettings(seeds=2, sweep_seeds=2)
    found = {Contestant(ReplayMethod.RANK, 0.5): 3.0, Contestant(ReplayMethod.RANK, 1.0): 2.0}
    points = [
        CurvePoint(TrainingKey(contestant, seed), 100, score if seed >= 1000 else -score)
        for contestant, score in found.items()
        for seed in (0, 1, 1000, 1001)
    ]
    assert best_of_sweep(curves_of(points)) == {ReplayMethod.RANK: Contestant(ReplayMethod.RANK, 0.5)}
    assert [key.seed for key in best_runs(settings, curves_of(points))] == [0, 1]
    assert len(first_runs(settings)) == 3 * 2
    assert len(sweep_runs(settings)) == 3 * 4 * 2


def printed(table: Table) -> str:
    """A table as printed in a terminal of 80 characters."""
    with (console := Console(width=80)).capture() as captured:
        console.print(table)
    return captured.get()


def test_the_tables_of_the_experiments_fit_80_characters() -> None:
    docs = Path(__file__).parents[2] / "docs" / "trainer"
    for env in ("Acrobot-v1", "CartPole-v1", "MountainCar-v0"):
        points = curve_file(docs / "learning-curves" / f"{env}.csv").read()
        shown = printed(compare_table(env, groups_of(curves_of(points))))
        assert "…" not in shown
        for part in ("over training", "at the end", "best of sweep", "P(better)", "proportional, x 0.25"):
            assert part in shown
        assert max(map(len, shown.splitlines())) <= 80
    found = summarize(result_file(docs / "cliffwalk.csv").read())
    for representation in Representation:
        lines = printed(summary_table(found, representation)).splitlines()
        assert lines[1].split() == ["states", "memory", "uniform", "oracle", "greedy", "proportional", "rank"]
        assert len(lines) == 3 + len(found[representation][Method.UNIFORM])


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_learning_curves_are_trained_in_parallel_and_only_once(tmp_path: Path) -> None:
    """The runs use the server that the comparison starts, with its token."""
    settings = CompareSettings(
        methods=(ReplayMethod.UNIFORM, ReplayMethod.RANK), seeds=1, sweep_seeds=0, steps=1100, jobs=2, out=tmp_path
    )
    compare(settings, StopRequest(), Console(quiet=True))
    path = settings.directory / "curves.csv"
    rows = lines_of(path)
    assert {(row["method"], row["step_size_factor"], row["seed"]) for row in rows} == {
        ("uniform", "1.0", "0"),
        ("rank", "0.25", "0"),
    }
    assert {row["step"] for row in rows} == {"1000", "1100"}
    assert (settings.directory / "curves.png").read_bytes().startswith(PNG)
    assert list((settings.directory / "access").iterdir()) == []

    before = path.read_text()
    compare(settings, StopRequest(), Console(quiet=True))
    assert path.read_text() == before


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_run_that_is_stopped_is_resumed_where_it_was(tmp_path: Path) -> None:
    settings = CompareSettings(
        methods=(ReplayMethod.UNIFORM,), seeds=1, sweep_seeds=0, steps=2_500, jobs=1, out=tmp_path / "stopped"
    )
    run = settings.directory / "runs" / "stopped-uniform-1-seed0"
    stop = StopRequest()

    def stop_when_it_trains() -> None:
        try:
            wait_until(lambda: bool(checkpoints(run / "checkpoints")), "it trains", _STARTS_S)
        finally:
            stop.set()

    thread = threading.Thread(target=stop_when_it_trains)
    thread.start()
    compare(settings, stop, Console(quiet=True))
    thread.join()
    assert not (settings.directory / "curves.csv").exists()
    stopped_at = int(checkpoints(run / "checkpoints")[-1].name.removeprefix("step-"))
    assert stopped_at < 2_500

    compare(settings, StopRequest(), Console(quiet=True))
    assert RunDirectory(run).earlier_starts == 1
    steps = [int(row["step"]) for row in lines_of(settings.directory / "curves.csv")]
    assert steps == [1_000, 2_000, 2_500]


def test_lists_are_words_with_commas_in_flags_and_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = "REPLAY_CLIFFWALK_"
    flags = ["--states", "2,4", "--states", "8"]
    assert read_settings(CliffwalkSettings, "cliffwalk", prefix, flags).states == (2, 4, 8)
    monkeypatch.setenv("REPLAY_CLIFFWALK_STATES", "3,5")
    assert read_settings(CliffwalkSettings, "cliffwalk", prefix, []).states == (3, 5)
    monkeypatch.setenv("REPLAY_COMPARE_METHODS", "uniform,rank")
    assert read_settings(CompareSettings, "compare", "REPLAY_COMPARE_", []).methods == (
        ReplayMethod.UNIFORM,
        ReplayMethod.RANK,
    )
