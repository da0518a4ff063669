"""Hindsight experience replay in one's own loop: flip bits until they equal a goal (Andrychowicz et al. 2017, 3.1).

    replay-server                                   # in another terminal
    python examples/recipes/her.py --bits 12

Each step is stored once, with its state and its goal. The table draws sequences that begin at any step, so the rest of
the episode is there, and `hindsight_goals` replaces most goals by states that the episode reached later.
"""

from __future__ import annotations

import copy
from typing import Any

import cyclopts
import numpy as np
import torch
from numpy.typing import NDArray
from replay_client import Batch, Column, Derived, Mask, ReplayClient, Sequences, Table, Writer, hindsight_goals
from torch import nn

GAMMA, IN_HINDSIGHT = 0.98, 0.8  # four goals in hindsight for one of the episode
BATCH_SIZE, EPISODES_PER_CYCLE, STEPS_PER_CYCLE, TEST_EPISODES = 128, 16, 40, 100


def create_table(client: ReplayClient, bits: int) -> Table:
    """Create the table; sequences have all steps of an episode, and its last state."""
    columns: dict[str, Column | Derived] = {
        "state": Column("float32", bits),
        "goal": Column("float32", bits),
        "action": Column("int64"),
        "mask": Mask(),
    }
    steps = Sequences(length=bits + 1, period=1)
    options: dict[str, Any] = {"capacity": 1e5, "backend": "uniform", "if_exists": "reset"}
    return client.create_table(f"her-{bits}", columns=columns, steps=steps, **options)


def relabeled(batch: Batch, rng: np.random.Generator) -> tuple[torch.Tensor, ...]:
    """Return transitions with goals in hindsight: observations, actions, rewards, discounts, next observations."""
    state, next_state = batch["state"][:, 0], batch["state"][:, 1]
    later = hindsight_goals(batch["state"], batch["mask"], rng)
    goals = np.where(rng.random((batch.batch_size, 1)) < IN_HINDSIGHT, later, batch["goal"][:, 0])
    is_reached = (next_state == goals).all(axis=1)
    columns = (
        np.concatenate([state, goals], axis=1),
        batch["action"][:, 0],
        is_reached - np.float32(1.0),
        np.where(is_reached, 0.0, GAMMA).astype(np.float32),
        np.concatenate([next_state, goals], axis=1),
    )
    return tuple(map(torch.as_tensor, columns))


@torch.no_grad()
def best_action(network: nn.Module, state: NDArray[Any], goal: NDArray[Any]) -> int:
    """Return the action with the highest value."""
    return int(network(torch.as_tensor(np.concatenate([state, goal]))).argmax())


def episode(network: nn.Module, bits: int, rng: np.random.Generator, epsilon: float, writer: Writer | None) -> bool:
    """Play an episode of at most ``bits`` steps, record it, and return whether it reached its goal."""
    state, goal = rng.integers(2, size=(2, bits)).astype(np.float32)
    is_reached = False
    for _ in range(bits):
        explores = rng.random() < epsilon
        action = int(rng.integers(bits)) if explores else best_action(network, state, goal)
        if writer is not None:
            writer.append(state=state, goal=goal, action=action)
        state = state.copy()
        state[action] = 1.0 - state[action]
        is_reached = bool((state == goal).all())
        if is_reached:
            break
    if writer is not None:
        writer.end_episode(state=state, terminated=is_reached)
    return is_reached


def main(address: str = "localhost:50051", *, bits: int = 12, cycles: int = 400, seed: int = 0) -> float:
    """Learn, and return the fraction of greedy episodes that reach their goals."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(2 * bits, 256), nn.ReLU(), nn.Linear(256, bits))
    target, optimizer = copy.deepcopy(network), torch.optim.Adam(network.parameters(), lr=1e-3)
    success = 0.0
    with ReplayClient(address) as client:
        table = create_table(client, bits)
        with table.writer() as writer, table.sampler(BATCH_SIZE, prefetch=4) as sampler:
            for cycle in range(cycles):
                for _ in range(EPISODES_PER_CYCLE):
                    episode(network, bits, rng, 0.2, writer)
                for _ in range(STEPS_PER_CYCLE):
                    obs, action, reward, discount, next_obs = relabeled(next(sampler), rng)
                    with torch.no_grad():
                        returns = (reward + discount * target(next_obs).amax(1)).clamp(-1.0 / (1.0 - GAMMA), 0.0)
                    values = network(obs).gather(1, action[:, None])[:, 0]
                    optimizer.zero_grad()
                    nn.functional.huber_loss(values, returns).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    with torch.no_grad():
                        for slow, fast in zip(target.parameters(), network.parameters(), strict=True):
                            slow.lerp_(fast, 0.05)
                if cycle % 20 == 19 or cycle == cycles - 1:
                    success = float(np.mean([episode(network, bits, rng, 0.0, None) for _ in range(TEST_EPISODES)]))
                    print(f"{(cycle + 1) * EPISODES_PER_CYCLE} episodes, success {success:.2f}", flush=True)
                    if success >= 0.98:
                        break
    return success


if __name__ == "__main__":
    cyclopts.run(main)
