"""RLPD: soft actor-critic with half of each batch from demonstrations (Ball et al. 2023, arXiv:2302.02948).

    replay-server                                   # in another terminal
    python examples/recipes/rlpd.py

Demonstrations and the agent's own steps lie in two tables. `mixed_sampler` draws equal parts of both in one batch. As
in the paper, critics have layer normalization, there are several of them, two random ones give the targets, and several
updates follow each step. Here, the demonstrations swing up a pendulum by pumping energy into it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import cyclopts
import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from replay_client import Column, Derived, Discount, Next, ReplayClient, Transitions
from replay_client.gymnasium import RecordSteps
from torch import nn

ENV, TABLES, CRITICS, UPDATES, HALF = "Pendulum-v1", ["rlpd-demonstrations", "rlpd-online"], 5, 2, 64
DEMONSTRATIONS, LEARNING_STARTS, EPISODES, TEMPERATURE = 20, 200, 10, 0.1
COLUMNS: dict[str, Column | Derived] = {"obs": Column("float32", 3), "action": Column("float32", 1)}
COLUMNS |= {"reward": Column("float32"), "next_obs": Next("obs"), "discount": Discount()}


def make_critic() -> nn.Module:
    """Create a network that computes the value of an action: float32[b, 3 + 1] to float32[b, 1]."""
    hidden = (nn.Linear(4, 128), nn.LayerNorm(128), nn.ReLU(), nn.Linear(128, 128), nn.LayerNorm(128), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(128, 1))


def values_of(critics: nn.ModuleList, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Compute the values of all critics, float32[critics, b]."""
    return torch.stack([critic(torch.cat([obs, action], 1))[:, 0] for critic in critics])


def sampled(actor: nn.Module, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample actions in [-2, 2], and return them with the logarithms of their probabilities."""
    mean, log_std = actor(obs).chunk(2, 1)
    normal: Any = torch.distributions.Normal(mean, log_std.clamp(-5.0, 2.0).exp())
    raw = normal.rsample()
    log_probability = normal.log_prob(raw) - 2.0 * (np.log(2.0) - raw - nn.functional.softplus(-2.0 * raw))
    return 2.0 * raw.tanh(), log_probability[:, 0]


def demonstrate(obs: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Swing up by energy, and balance near the top; with some noise."""
    cos, sin, speed = obs
    energy = speed**2 / 6.0 + 5.0 * (cos - 1.0)
    torque = -8.0 * sin - 2.0 * speed if cos > 0.9 else -2.0 * np.sign(speed or 1.0) * np.sign(energy)
    return np.array([np.clip(torque + 0.3 * rng.normal(), -2.0, 2.0)], np.float32)


def update(actor: nn.Module, critics: Any, targets: Any, optimizer: torch.optim.Optimizer, batch: list[Any]) -> None:
    """Take a gradient step on transitions."""
    obs, action, reward, next_obs, discount = batch
    with torch.no_grad():
        next_action, log_probability = sampled(actor, next_obs)
        two = values_of(targets, next_obs, next_action)[torch.randperm(CRITICS)[:2]]
        due = reward + discount * (two.amin(0) - TEMPERATURE * log_probability)
    new_action, log_probability = sampled(actor, obs)
    loss = (values_of(critics, obs, action) - due).square().mean(1).sum()
    loss += (TEMPERATURE * log_probability - values_of(targets, obs, new_action).mean(0)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for slow, fast in zip(targets.parameters(), critics.parameters(), strict=True):
        slow.data.lerp_(fast.data, 0.01)


def play(env: gymnasium.Env[Any, Any], act: Callable[[Any], Any], episodes: int, seed: int) -> float:
    """Play episodes, and return their mean return."""
    total = 0.0
    for episode in range(episodes):
        (obs, _), is_over = env.reset(seed=seed + episode), False
        while not is_over:
            obs, reward, _, is_over, _ = env.step(act(obs))
            total += float(reward)
    return total / episodes


def main(address: str = "localhost:50051", *, steps: int = 3_000, seed: int = 0) -> float:
    """Learn, and return the mean return: above -200, the pendulum stands."""
    torch.manual_seed(seed)
    actor = nn.Sequential(nn.Linear(3, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    critics = nn.ModuleList(make_critic() for _ in range(CRITICS))
    targets, rng = copy.deepcopy(critics).requires_grad_(False), np.random.default_rng(seed)
    optimizer = torch.optim.Adam([*actor.parameters(), *critics.parameters()], lr=1e-3)
    options: dict[str, Any] = {"steps": Transitions(gamma=0.99), "backend": "uniform", "if_exists": "reset"}
    with ReplayClient(address) as client:
        demos, own = (client.create_table(name, columns=COLUMNS, capacity=1e5, **options) for name in TABLES)
        with demos.writer() as writer:
            play(RecordSteps(gymnasium.make(ENV), writer), lambda obs: demonstrate(obs, rng), DEMONSTRATIONS, 1_000)
        sampling = client.mixed_sampler(dict.fromkeys(TABLES, HALF * UPDATES), device="cpu")
        with own.writer() as writer, sampling as sampler:
            env = RecordSteps(gymnasium.make(ENV), writer)
            obs, _ = env.reset(seed=seed)
            for step in range(steps):
                with torch.no_grad():
                    action = sampled(actor, torch.as_tensor(obs)[None])[0][0].numpy()
                obs, _, _, is_over, _ = env.step(action)
                if is_over:
                    obs, _ = env.reset()
                if step >= LEARNING_STARTS:
                    batch = next(sampler)
                    for part in range(UPDATES):
                        update(actor, critics, targets, optimizer, [batch[name][part::UPDATES] for name in COLUMNS])
    with torch.no_grad():
        best = lambda obs: 2.0 * actor(torch.as_tensor(obs)[None])[0, :1].tanh().numpy()  # noqa: E731
        return play(gymnasium.make(ENV), best, EPISODES, 0)


if __name__ == "__main__":
    cyclopts.run(main)
