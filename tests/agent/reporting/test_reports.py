"""Numbers that cannot be those of an episode, wherever they would be recorded."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
import replay_agent
from replay_agent.acting.step_guard import EnvironmentFailedError
from replay_agent.dqn.divergence import DivergedError
from replay_agent.reporting.progress import ProgressView
from replay_agent.training.training_loop import TrainingLoop

import experiments
from tests.agent.corridor import BROKEN_ID


def test_an_environment_whose_rewards_are_not_finite_ends_the_run(make_trainer: Callable[..., TrainingLoop]) -> None:
    trainer = make_trainer(env=BROKEN_ID)
    with pytest.raises(EnvironmentFailedError, match=r"Broken-v0 returned a reward that is not finite"):
        trainer.train(ProgressView(), None)
    assert trainer.history.episode_returns == []


def test_greedy_episodes_of_such_an_environment_are_noticed_too(make_trainer: Callable[..., TrainingLoop]) -> None:
    trainer = make_trainer(env=BROKEN_ID)
    with pytest.raises(DivergedError, match="of a greedy episode, got nan"):
        trainer.evaluate_best()


def test_whatever_writes_json_refuses_what_is_no_json() -> None:
    writers = [
        (path.name, call)
        for package in (replay_agent, experiments)
        for path in Path(package.__path__[0]).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("json.dumps", "json.dump")
    ]
    assert len(writers) >= 4
    for name, call in writers:
        assert "allow_nan=False" in map(ast.unparse, call.keywords), f"{name}:{call.lineno}"
