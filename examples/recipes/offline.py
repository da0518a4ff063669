"""Offline learning: a `DataLoader` draws from stored episodes, as from a dataset, and a network learns their policy.

    replay-server                                   # in another terminal
    python examples/recipes/offline.py

The episodes come from a hand-written controller. With `--data-dir`, a server keeps them for later programs, and
docs/how-to/data.md says how to load those of others, such as Minari's or Parquet files.
"""

from __future__ import annotations

from typing import Any

import cyclopts
import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import RecordEpisodeStatistics
from replay_client import Column, ReplayClient, Table
from replay_client.torch import TableDataset
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

ENV, BATCH_SIZE = "CartPole-v1", 256
CONTROLLER = np.array([0.1, 0.5, 2.0, 1.0])  # it pushes to where the pole falls, and slowly back to the middle


def record(table: Table, episodes: int, noise: float) -> None:
    """Store episodes of the controller, whose actions are at times random; the dataset has the intended ones."""
    env, rng = gymnasium.make(ENV), np.random.default_rng(0)
    with table.writer() as writer:
        for episode in range(episodes):
            (obs, _), is_over = env.reset(seed=episode), False
            while not is_over:
                intended = int(CONTROLLER @ obs > 0)
                writer.append(obs=obs, action=intended)
                obs, _, terminated, truncated, _ = env.step(intended if rng.random() > noise else int(rng.integers(2)))
                is_over = terminated or truncated
            writer.end_episode()


def evaluate(network: nn.Module, episodes: int) -> float:
    """Return the mean length of episodes that the network plays."""
    env = RecordEpisodeStatistics(gymnasium.make(ENV), buffer_length=episodes)
    for episode in range(episodes):
        (obs, _), is_over = env.reset(seed=1_000 + episode), False
        while not is_over:
            with torch.no_grad():
                action = int(network(torch.from_numpy(obs)).argmax())
            obs, _, terminated, truncated, _ = env.step(action)
            is_over = terminated or truncated
    return float(np.mean(env.length_queue))


def main(address: str = "localhost:50051", *, episodes: int = 50, updates: int = 1_000, workers: int = 2) -> float:
    """Record a dataset, learn from it, and return the mean length of 20 episodes of the network."""
    torch.manual_seed(0)
    columns = {"obs": Column("float32", 4), "action": Column("int64")}
    with ReplayClient(address) as client:
        table = client.create_table("offline", columns=columns, capacity=100_000, backend="uniform", if_exists="reset")
        record(table, episodes, noise=0.2)
        network = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
        optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
        # Complete batches, from workers that have connections of their own.
        loader = DataLoader(
            TableDataset(table, BATCH_SIZE), batch_size=None, num_workers=workers, multiprocessing_context="spawn"
        )
        for update, batch in zip(range(1, updates + 1), loader, strict=False):
            loss: Any = functional.cross_entropy(network(batch["obs"]), batch["action"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if update % 200 == 0:
                print(f"{update} updates: loss {loss.item():.3f}")
    return evaluate(network, 20)


if __name__ == "__main__":
    cyclopts.run(main)
