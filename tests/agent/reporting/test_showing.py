"""Reporting: history, curve, progress, report."""

from __future__ import annotations

import io
import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from replay_agent.reporting.curve import RECENT_EPISODES, History, draw_curve, running_mean
from replay_agent.reporting.progress import ProgressBar, ProgressLines, RateMeter, Status, make_progress
from replay_agent.reporting.training_report import EvaluationSummary, TrainingReport
from replay_agent.training.schedules import Interval
from rich.console import Console

STATUS = Status(
    env_steps=500,
    updates=250,
    recent_return=123.4,
    best_mean=None,
    loss=0.0123,
    grad_norm=1.0,
    mean_value=2.0,
    epsilon=0.31,
    beta=0.45,
    steps_per_s=777.0,
    updates_per_s=388.0,
)


class Clock:
    """A manually advanced clock."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_history_survives_as_json() -> None:
    history = History()
    for step in range(50):
        history.add_episode(step * 10, float(step))
    history.add_validation(300, 25.0)
    restored = History(**json.loads(json.dumps(vars(history))))
    assert restored == history
    assert restored.recent_return == history.recent_return == np.mean(range(50 - RECENT_EPISODES, 50))


def test_there_is_no_recent_return_before_the_first_episode() -> None:
    assert History().recent_return is None


def test_a_running_mean_begins_with_what_there_is() -> None:
    assert running_mean(np.array([1.0, 3.0, 5.0, 7.0]), window=2).tolist() == [1.0, 2.0, 4.0, 6.0]


@pytest.mark.parametrize("episodes", [0, 1, 100])
def test_a_curve_is_drawn_however_short_the_run_was(tmp_path: Path, episodes: int) -> None:
    history = History()
    for step in range(episodes):
        history.add_episode(step, float(step))
    draw_curve(history, tmp_path / "curve.png", "title", solved_return=3.0)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_terminal_sees_a_bar_with_return_loss_epsilon_beta_and_speed() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    with make_progress(console, "CartPole-v1", 1000, shown=True) as progress:
        progress.show(STATUS)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    for part in ("CartPole-v1", "500 of 1,000 steps", "50%", "123.4", "0.0123", "0.31", "0.45", "777"):
        assert part in shown


def test_nothing_of_the_bar_is_cut_off_in_80_characters() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    far = replace(STATUS, env_steps=123_456_789, recent_return=-12345.6, note="waiting for the server")
    with make_progress(console, "MinAtar/SpaceInvaders-v1", 200_000_000, shown=True) as progress:
        progress.show(far)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "…" not in shown
    for part in (
        "MinAtar/SpaceInvaders-v1",
        "123,456,789 of 200,000,000 steps",
        "left",
        "-12345.6",
        "0.0123",
        "777",
        "steps/s",
        "waiting",
        "server",
    ):
        assert part in shown


def lines_of(bar: ProgressBar, console: Console) -> list[str]:
    """Render the bar as it is now."""
    with console.capture() as captured:
        console.print(bar)
    return captured.get().splitlines()


def test_the_bar_says_how_much_time_is_left_and_for_how_long_there_was_no_step() -> None:
    clock, console = Clock(), Console(file=io.StringIO(), width=80, height=24)
    bar = ProgressBar(console, "CartPole-v1", 1000, clock)
    bar.show(replace(STATUS, env_steps=400))  # such as after a resume
    for step in range(401, 501):
        clock.now += 1.0
        bar.show(replace(STATUS, env_steps=step))
    lines = lines_of(bar, console)
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80
    assert "0:08:20 left" in lines[0]
    assert lines[1] == "  500 of 1,000 steps  777 steps/s  return 123.4  best -"
    assert lines[2].rstrip() == "  loss 0.0123  ε 0.31  β 0.45"
    clock.now += 7.0
    assert "no step for 7 s" in lines_of(bar, console)[2]
    bar.show(replace(STATUS, env_steps=500, note="validating"))
    assert "validating for 7 s" in lines_of(bar, console)[2]
    bar.show(replace(STATUS, env_steps=501, note="filling the table: 501 of 900 rows"))
    assert lines_of(bar, console)[2].endswith("  filling the table: 501 of 900 rows")
    bar.show(replace(STATUS, env_steps=1000))
    clock.now += 60.0
    assert "no step" not in lines_of(bar, console)[2]


def test_without_a_terminal_there_is_a_line_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    clock.now = 100.0
    lines = ProgressLines("CartPole-v1", 1000, clock)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            lines.show(STATUS)
        clock.now += 10.0
        lines.show(STATUS)
    assert len(caplog.messages) == 2
    assert "500/1000 return 123.4" in caplog.messages[0]


def test_nothing_is_shown_when_progress_is_off(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), make_progress(Console(file=io.StringIO()), "x", 1, shown=False) as progress:
        progress.show(STATUS)
    assert caplog.messages == []


def test_a_report_shows_and_saves_what_a_run_came_to(tmp_path: Path) -> None:
    summary = EvaluationSummary(episodes=100, mean=499.25, std=3.5, lowest=470.0, highest=500.0)
    paths = ("runs/x", "runs/x/c.png", "runs/x/h.json")
    report = TrainingReport("CartPole-v1", "r2d2", "rank", 3, "solved", 9000, 4500, 31.4, 500.0, summary, *paths)
    console = Console(file=io.StringIO(), width=80)
    report.show(console)
    report.save(tmp_path / "result.json")
    assert isinstance(console.file, io.StringIO)
    for part in ("r2d2", "rank", "seed 3", "solved", "9,000", "31.4 s", "499.2", "470.0", "x/c.png"):
        assert part in console.file.getvalue()
    assert json.loads((tmp_path / "result.json").read_text())["evaluation"]["mean"] == 499.25


def test_a_rate_is_that_of_the_last_seconds() -> None:
    clock = Clock()
    meter = RateMeter(clock)
    assert meter.per_second(0) == 0.0
    clock.now = 4.0
    assert meter.per_second(400) == 100.0
    clock.now = 8.0
    assert meter.per_second(2400) == 500.0


def test_an_interval_is_due_once_each_time_it_has_passed() -> None:
    clock = Clock()
    interval = Interval(2.0, clock)
    assert not interval.is_due()
    clock.now = 2.0
    assert interval.is_due()
    assert not interval.is_due()
    clock.now = 4.5
    assert interval.is_due()
