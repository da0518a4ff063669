"""QMIX for several agents: the two-step game of Rashid et al. 2018 (arXiv:1803.11485) as a PettingZoo environment.

    replay-server                                   # in another terminal
    python examples/recipes/qmix.py

A row has the step of all agents: their observations ``[agents, obs]`` and actions ``[agents]``, the shared reward, and
the state for the mixing network. In the first step, the action of the first agent chooses a game; the second step
pays 7 in one game, and 0, 1, 1 or 8 in the other. Agents whose values are simply added settle for 7.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import cyclopts
import numpy as np
import torch
from numpy.typing import NDArray
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
from replay_client import Column, Derived, Discount, Next, ReplayClient, Transitions, Writer
from torch import nn

AGENTS, ACTIONS, OBS, STATES = ["first", "second"], 2, 5, 3
BATCH_SIZE, LEARNING_STARTS, TARGET_INTERVAL = 32, 64, 100
PAYOFFS, NUMBERS = np.array([[[7, 7], [7, 7]], [[0, 1], [1, 8]]]), np.eye(len(AGENTS), dtype=np.float32)
COLUMNS: dict[str, Column | Derived] = {"obs": Column("float32", (2, OBS)), "state": Column("float32", STATES)}
COLUMNS |= {"action": Column("int64", 2), "reward": Column("float32")}
COLUMNS |= {"next_obs": Next("obs"), "next_state": Next("state"), "discount": Discount()}


class TwoStepGame(ParallelEnv):  # type: ignore[misc]  # PettingZoo has no types
    """Agents see the state and their own number, as one-hot vectors."""

    metadata: ClassVar[dict[str, Any]] = {"name": "two_step_game"}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin an episode."""
        self.agents, self._at = AGENTS[:], 0
        return self._seen(), {agent: {} for agent in AGENTS}

    def step(self, actions: Mapping[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        """Choose a game, or play it."""
        is_over, (first, second) = self._at > 0, (actions[agent] for agent in AGENTS)
        reward = float(PAYOFFS[self._at - 1, first, second]) if is_over else 0.0
        self._at = self._at if is_over else 1 + first
        self.agents = [] if is_over else AGENTS[:]
        rewards, terminated, truncated = (dict.fromkeys(AGENTS, value) for value in (reward, is_over, False))
        return self._seen(), rewards, terminated, truncated, {agent: {} for agent in AGENTS}

    def state(self) -> NDArray[np.float32]:
        """Return the state, one-hot."""
        return np.eye(STATES, dtype=np.float32)[self._at]  # type: ignore[no-any-return]

    def _seen(self) -> dict[str, NDArray[np.float32]]:
        return {agent: np.concatenate([self.state(), own]) for agent, own in zip(AGENTS, NUMBERS, strict=True)}


class Qmix(nn.Module):
    """Values of each agent's actions, and a mixing network whose weights depend on the state and are not negative."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.agent = nn.Sequential(nn.Linear(OBS, 64), nn.ReLU(), nn.Linear(64, ACTIONS))
        self.first, self.bias, self.last = (nn.Linear(STATES, n) for n in (len(AGENTS) * hidden, hidden, hidden))
        self.value = nn.Sequential(nn.Linear(STATES, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, chosen: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Mix the values of the agents' chosen actions: float32[b, agents] to float32[b]."""
        first = self.first(state).abs().unflatten(1, (len(AGENTS), -1))
        mixed = nn.functional.elu((chosen[:, :, None] * first).sum(1) + self.bias(state))
        result: torch.Tensor = (mixed * self.last(state).abs()).sum(1) + self.value(state)[:, 0]
        return result


def play(env: TwoStepGame, act: Callable[[NDArray[Any]], NDArray[Any]], writer: Writer | None = None) -> float:
    """Play an episode, record it, and return its return."""
    (seen, _), total = env.reset(), 0.0
    while env.agents:
        step = {"obs": np.stack(list(seen.values())), "state": env.state()}
        action = act(step["obs"])
        seen, rewards, *_ = env.step(dict(zip(AGENTS, action.tolist(), strict=True)))
        total += rewards[AGENTS[0]]
        if writer is not None:
            writer.append(step, action=action, reward=rewards[AGENTS[0]])
    if writer is not None:
        writer.end_episode(obs=np.stack(list(seen.values())), state=env.state(), terminated=True)
    return total


def main(address: str = "localhost:50051", *, episodes: int = 5_000, seed: int = 0) -> float:
    """Learn from random play, as in the paper, and return the return of a greedy episode: 8 is the best."""
    torch.manual_seed(seed)
    rng, env, network = np.random.default_rng(seed), TwoStepGame(), Qmix()
    target, optimizer = copy.deepcopy(network), torch.optim.Adam(network.parameters(), lr=1e-3)
    options: dict[str, Any] = {"capacity": 10_000, "backend": "uniform", "if_exists": "reset"}
    with ReplayClient(address) as client:
        table = client.create_table("qmix", columns=COLUMNS, steps=Transitions(gamma=0.99), **options)
        with table.writer() as writer, table.sampler(BATCH_SIZE, device="cpu") as sampler:
            for episode in range(episodes):
                play(env, lambda _: rng.integers(ACTIONS, size=len(AGENTS)), writer)
                if episode % TARGET_INTERVAL == 0:
                    target.load_state_dict(network.state_dict())
                if episode < LEARNING_STARTS:
                    continue
                batch = next(sampler)
                with torch.no_grad():
                    best = target(target.agent(batch["next_obs"]).amax(2), batch["next_state"])
                chosen = network.agent(batch["obs"]).gather(2, batch["action"][:, :, None])[:, :, 0]
                errors = batch["reward"] + batch["discount"] * best - network(chosen, batch["state"])
                optimizer.zero_grad()
                errors.square().mean().backward()
                optimizer.step()
    with torch.no_grad():
        return play(env, lambda obs: network.agent(torch.as_tensor(obs)).argmax(1).numpy())


if __name__ == "__main__":
    cyclopts.run(main)
