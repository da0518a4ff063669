"""R2D2 solves environments that need memory, with their presets: `make integrations`."""

from __future__ import annotations

from pathlib import Path

import pytest
from replay_agent.processes.signals import StopRequest
from replay_agent.settings.train_settings import TrainSettings
from replay_agent.training.run import train
from replay_agent.training.training_loop import Ending
from rich.console import Console

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
SEEDS = range(5)


@pytest.mark.parametrize("env", ["MaskedCartPole-v1", "TMaze-v0"])
def test_all_seeds_but_one_at_most_solve_what_needs_memory(tmp_path: Path, env: str) -> None:
    solved = 0
    for seed in SEEDS:
        settings = TrainSettings(
            env=f"replay_agent.memory_tasks:{env}", algorithm="r2d2", seed=seed, runs_dir=tmp_path / str(seed)
        )
        report = train(settings, StopRequest(), Console(quiet=True))
        print(f"{env}, seed {seed}: {report.ending}, {report.env_steps:,} steps, {report.training_s:.0f} s")
        solved += report.ending == Ending.SOLVED
    assert solved >= len(SEEDS) - 1
