"""Soft actor-critic with prioritized replay, and several environments in one actor.

    replay-server                                   # in another terminal
    python examples/recipes/sac.py

The table stores each step once, and makes transitions of two steps. Several gradient steps use one draw. Haarnoja et
al. (2018), arXiv:1812.05905, with its automatic temperature.
"""

from __future__ import annotations

import copy
from typing import Any

import cyclopts
import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from replay_client import Column, Derived, Discount, Next, ReplayClient, Return, Transitions
from replay_client.gymnasium import RecordSteps
from torch import Tensor, nn
from torch.nn import functional

ENV, ENVS, BATCH_SIZE, UPDATES, LEARNING_STARTS, TARGET_ENTROPY = "Pendulum-v1", 4, 128, 4, 1_000, -1.0
COLUMNS: dict[str, Column | Derived] = {"obs": Column("float32", 3), "action": Column("float32", 1)}
COLUMNS |= {"step_reward": Column("float32", sampled=False), "reward": Return("step_reward")}
COLUMNS |= {"discount": Discount(), "next_obs": Next("obs")}


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """Return a network with two hidden layers."""
    return nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, outputs))


class Agent(nn.Module):
    """An actor, two critics with targets, and the logarithm of a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critics = mlp(3, 2), nn.ModuleList([mlp(4, 1), mlp(4, 1)])
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions in [-2, 2], float32[b, 1], and the logarithms of their probabilities, float32[b]."""
        mean, log_std = self.actor(obs).chunk(2, 1)
        normal: Any = torch.distributions.Normal(mean, log_std.clamp(-5.0, 2.0).exp())
        raw = normal.rsample()
        log_probability = normal.log_prob(raw) - 2.0 * (np.log(2.0) - raw - functional.softplus(-2.0 * raw))
        return 2.0 * raw.tanh(), log_probability[:, 0]


def values_of(critics: Any, obs: Tensor, action: Tensor) -> Tensor:
    """Return the values of both critics, float32[2, b]."""
    return torch.stack([critic(torch.cat([obs, action], 1))[:, 0] for critic in critics])


def losses_of(agent: Agent, batch: Any) -> tuple[Any, Tensor]:
    """Return the sum of all losses, and the absolute TD errors, float32[b]."""
    temperature = agent.log_temperature.detach().exp()
    with torch.no_grad():
        next_action, log_probability = agent.sample(batch["next_obs"])
        following = values_of(agent.targets, batch["next_obs"], next_action).amin(0) - temperature * log_probability
        due = batch["reward"] + batch["discount"] * following
    errors = values_of(agent.critics, batch["obs"], batch["action"]) - due
    action, log_probability = agent.sample(batch["obs"])
    # The targets move slowly, so the actor may follow them, and leaves no gradients in the critics.
    actor_loss = temperature * log_probability - values_of(agent.targets, batch["obs"], action).amin(0)
    temperature_loss = -agent.log_temperature * (log_probability.detach() + TARGET_ENTROPY)
    loss = (batch.weights * errors.square().sum(0)).mean() + actor_loss.mean() + temperature_loss.mean()
    return loss, errors.detach().abs().mean(0)


def main(address: str = "localhost:50051", *, steps: int = 12_000, seed: int = 0) -> float:
    """Learn, and return the mean return of the newest 20 episodes: above -250, the pendulum stands most of the time."""
    torch.manual_seed(seed)
    agent, items = Agent(), Transitions(n_step=2)
    optimizer = torch.optim.Adam([each for each in agent.parameters() if each.requires_grad], lr=1e-3)
    envs = SyncVectorEnv([lambda: gymnasium.make(ENV)] * ENVS, autoreset_mode=AutoresetMode.SAME_STEP)
    played = RecordEpisodeStatistics(envs, buffer_length=20)
    with ReplayClient(address) as client:
        table = client.create_table("sac", columns=COLUMNS, capacity=100_000, steps=items, if_exists="reset")
        with table.writer(streams=ENVS) as writer, table.sampler(UPDATES * BATCH_SIZE, device="cpu") as sampler:
            recorded = RecordSteps(played, writer, reward="step_reward")
            obs, _ = recorded.reset(seed=seed)
            for step in range(0, steps, ENVS):
                with torch.no_grad():
                    action = agent.sample(torch.from_numpy(obs))[0].numpy()
                obs, _, _, _, _ = recorded.step(action)
                if step < LEARNING_STARTS:
                    continue
                for part in next(sampler).split(UPDATES):
                    loss, errors = losses_of(agent, part)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    sampler.update_priorities(part, errors)
                    for slow, fast in zip(agent.targets.parameters(), agent.critics.parameters(), strict=True):
                        slow.data.lerp_(fast.data, 0.005)
                print(f"\r{step:,} steps, mean return {np.mean(played.return_queue):.0f}", end="  ")
    return float(np.mean(played.return_queue))


if __name__ == "__main__":
    cyclopts.run(main)
