"""Diverging runs stop, explain why, and leave usable checkpoints."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from replay_agent.dqn.divergence import (
    MAX_RETURN,
    DivergedError,
    require_finite,
    require_finite_figures,
    require_return,
)
from replay_agent.dqn.double_dqn import DoubleDQN
from replay_agent.dqn.learner import DECAY, FOLDED_STEPS, DoubleDQNConfig, FiguresMeter
from replay_agent.dqn.networks import NetworkSpec
from replay_agent.processes.signals import StopRequest
from replay_agent.reporting.progress import ProgressView
from replay_agent.reporting.tensorboard import MetricsLog
from replay_agent.settings.train_settings import TrainSettings
from replay_agent.training.checkpoint import checkpoints
from replay_agent.training.run import train
from replay_agent.training.training_loop import Ending, TrainingLoop
from rich.console import Console
from safetensors.torch import load_file

from tests.agent.dqn.test_learner import make_batch
from tests.support.server_process import ServerProcess

CPU = torch.device("cpu")
EXPLODING = {"learning_rate": 1e30}


@pytest.mark.parametrize(("lockstep", "solved_return"), [(True, None), (False, 1.0)])
def test_a_run_that_diverges_stops_with_advice_and_is_resumed_from_a_finite_checkpoint(
    server: ServerProcess,
    settings_of: Callable[..., TrainSettings],
    make_trainer: Callable[..., TrainingLoop],
    tmp_path: Path,
    lockstep: bool,
    solved_return: float | None,
) -> None:
    name = f"exploded-{lockstep}-{solved_return}"
    settings = settings_of(
        server=server.address,
        name=name,
        lockstep=lockstep,
        solved_return=solved_return,
        validate_interval=101,
        checkpoint_interval_s=0.01,
        **EXPLODING,
    )
    with pytest.raises(DivergedError, match=r"after gradient step \d+, not finite: ") as diverged:
        train(settings, StopRequest(), Console(quiet=True))
    run = tmp_path / "runs" / name
    advice = "".join(diverged.value.__notes__)
    assert "--learning-rate (now 1e+30)" in advice
    assert "--max-grad-norm (now 10)" in advice
    assert f"replay-train --resume {run} --learning-rate 1e+29" in advice

    kept = checkpoints(run / "checkpoints")
    assert kept
    for path in kept:
        for file in ("online", "target", "optimizer"):
            assert all(tensor.isfinite().all() for tensor in load_file(path / f"{file}.safetensors").values())

    again = make_trainer(resume=run, learning_rate=1e-3)
    again.resume()
    assert again.train(ProgressView(), None) is Ending.STEPS_DONE


class SpoilAfterValidation(MetricsLog):
    """Makes a network's values NaN immediately after its validation."""

    def __init__(self) -> None:
        super().__init__(None)
        self.trainer: TrainingLoop | None = None
        self.validated_at: list[int] = []

    def validation(self, step: int, mean: float) -> None:
        self.validated_at.append(step)
        assert self.trainer is not None
        with torch.no_grad():
            for parameter in self.trainer.learner.online.parameters():
                parameter.fill_(torch.nan)


def test_a_network_that_is_not_finite_is_not_judged_let_alone_chosen(make_trainer: Callable[..., TrainingLoop]) -> None:
    metrics = SpoilAfterValidation()
    # A gradient step every 50 steps, with two validations between gradient steps.
    metrics.trainer = trainer = make_trainer(metrics=metrics, replay_ratio=0.02, validate_interval=20)
    with pytest.raises(DivergedError, match="gradient step 1, not finite: the online network, action values"):
        trainer.train(ProgressView(), None)
    assert metrics.validated_at == [149]
    assert trainer.pacer.env_steps == 160
    assert trainer.selector.best_weights is not None
    assert all(tensor.isfinite().all() for tensor in trainer.selector.best_weights.values())


def test_a_gradient_step_that_was_not_finite_is_noticed_however_late() -> None:
    learner = DoubleDQN(NetworkSpec((2,), "float32", 2, (4,), dueling=False), DoubleDQNConfig(1e-2), CPU)
    learner.updates = 100  # from an earlier start
    for _ in range(5):
        learner.update(make_batch())
    require_finite_figures(learner, learner.figures.fetch())
    spoiled = make_batch()
    spoiled.reward[2] = torch.nan
    learner.update(spoiled)
    for _ in range(3):
        learner.update(make_batch())
    with pytest.raises(DivergedError, match="after gradient step 109, not finite: the loss, the gradient"):
        require_finite_figures(learner, learner.figures.fetch())


def test_a_check_draws_no_noise() -> None:
    noisy = NetworkSpec((2,), "float32", 2, (4,), dueling=False, noisy_sigma=0.5)
    learner = DoubleDQN(noisy, DoubleDQNConfig(1e-2), CPU)
    learner.update(make_batch())
    before = torch.get_rng_state()
    require_finite(learner)
    assert torch.equal(before, torch.get_rng_state())
    assert learner.online.training


def test_figures_are_smoothed_and_right_from_the_first_on() -> None:
    meter = FiguresMeter(CPU)
    assert meter.fetch() is None
    meter.add(torch.tensor(4.0), torch.tensor(1.0), torch.tensor(-2.0))
    found = meter.fetch()
    assert found is not None
    assert (found.loss, found.grad_norm, found.mean_value) == pytest.approx((4.0, 1.0, -2.0))
    meter.add(torch.tensor(8.0), torch.tensor(1.0), torch.tensor(-2.0))
    found = meter.fetch()
    assert found is not None
    assert found.loss == pytest.approx((DECAY * 4 + 8) / (1 + DECAY))


def test_figures_of_many_steps_are_those_of_the_steps_one_by_one() -> None:
    together, one_by_one = FiguresMeter(CPU), FiguresMeter(CPU)
    generator = torch.Generator().manual_seed(1)
    for step in range(2 * FOLDED_STEPS + 7):
        values = list(torch.rand(3, generator=generator))
        if step == FOLDED_STEPS + 3:
            values[1] = torch.tensor(torch.inf)
        for meter in (together, one_by_one):
            meter.add(values[0], values[1], values[2])
        found = one_by_one.fetch()
    last = together.fetch()
    assert found is not None
    assert last is not None
    assert (last.loss, last.mean_value) == pytest.approx((found.loss, found.mean_value), rel=1e-4)
    assert last.grad_norm == found.grad_norm == torch.inf


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2 * MAX_RETURN])
def test_a_return_that_is_no_number_is_refused(value: float) -> None:
    require_return(MAX_RETURN, "an episode")
    with pytest.raises(DivergedError, match=re.escape(f"of an episode, got {value}")):
        require_return(value, "an episode")
