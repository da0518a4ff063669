"""Parts of an agent of one's own, as a user would have them in a module."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from replay_agent import DoubleDQN, LossResult, NetworkSpec, TransitionBatch
from torch import Tensor, nn


class Drawn(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Draws each frame in a gray of its own: a package for real pictures is not installed."""

    frames = 0
    render_mode = "rgb_array"

    def render(self) -> NDArray[np.uint8]:
        """Return the picture."""
        self.frames += 1
        return np.full((8, 8, 3), self.frames, np.uint8)


def make_env(render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """CartPole, under the name of this function."""
    env = gymnasium.make("CartPole-v1")
    return env if render_mode is None else Drawn(env)


def failing_env() -> gymnasium.Env[Any, Any]:
    """An environment that cannot be made."""
    raise RuntimeError("no simulator")


def no_env() -> str:
    """Something else."""
    return "CartPole-v1"


class Linear(nn.Module):
    """Action values that are linear in the observation."""

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.layer = nn.Linear(spec.observation_shape[0], spec.actions)

    def forward(self, obs: Tensor) -> Tensor:
        """Return the values."""
        values: Tensor = self.layer(obs)
        return values


class ThreeValues(Linear):
    """Has one value too many."""

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__(spec)
        self.layer = nn.Linear(spec.observation_shape[0], spec.actions + 1)


def no_network(spec: NetworkSpec) -> str:
    """Something else."""
    return "a network"


class SquaredErrors(DoubleDQN):
    """A loss without Huber's, and constant priorities."""

    def compute_loss(self, batch: TransitionBatch) -> LossResult:
        """Return the mean squared error."""
        values = self.online(batch.obs).gather(1, batch.action[:, None])[:, 0]
        with torch.no_grad():
            targets = batch.reward + batch.discount * self.target(batch.next_obs).amax(1)
        loss = (batch.weights * (targets - values).square()).mean()
        return LossResult(loss, torch.full_like(values.detach(), 7.0), values.detach().mean())
