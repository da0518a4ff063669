"""Double DQN with several learners: each rank of DistributedDataParallel has a sampler and a writer of the same table.

    replay-server                       # in another terminal
    python examples/ddp_dqn.py          # two ranks on this machine learn CartPole

Each rank acts in its own environment, draws its own batches, and updates the priorities of the rows it drew. DDP
averages the gradients, so all ranks keep the same weights and learn as if from one large batch.

For this, rows must have the same importance in the batches of all ranks: ``weight_norm="table"`` divides weights by the
largest weight of any row in the table. By default, they are divided by the largest weight in the batch, which differs
from rank to rank.
"""

from __future__ import annotations

import copy
import os
import tempfile
from pathlib import Path
from typing import Any

import cyclopts
import gymnasium
import numpy as np
import torch
from replay_client import ReplayClient, Table, Transitions
from replay_client.gymnasium import RecordSteps
from replay_client.spaces import transition_columns
from torch import distributed, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

ENV, TABLE = "CartPole-v1", "ddp-dqn"
BATCH_SIZE = 64  # of each rank
LEARNING_STARTS, EXPLORING = 500, 5_000  # steps of each rank
VALIDATE_INTERVAL, EPISODES, SOLVED = 1_000, 10, 475.0  # episodes of each rank


def create_table(client: ReplayClient) -> Table:
    """Create the table, or empty an existing one."""
    return client.create_table(
        TABLE,
        columns=transition_columns(gymnasium.make("CartPole-v1")),
        capacity=50_000,
        steps=Transitions(n_step=3, gamma=0.99),
        if_exists="reset",
    )


def make_network() -> nn.Module:
    """Create a network that computes the values of both actions: float32[b, 4] to float32[b, 2]."""
    return nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))


@torch.no_grad()
def greedy(network: nn.Module, obs: Any) -> int:
    """Return the best action."""
    return int(network(torch.as_tensor(obs)).argmax())


def td_errors(network: nn.Module, target: nn.Module, batch: Any) -> torch.Tensor:
    """Return the TD errors of n-step Double DQN, float32[b].

    The discount is gamma**k after k steps, and 0 after a terminal state.
    """
    with torch.no_grad():
        best = network(batch["next_obs"]).argmax(1, keepdim=True)
        returns = batch["n_return"] + batch["discount"] * target(batch["next_obs"]).gather(1, best)[:, 0]
    errors: torch.Tensor = returns - network(batch["obs"]).gather(1, batch["action"][:, None])[:, 0]
    return errors


def mean_return(network: nn.Module, seed: int) -> float:
    """Return the mean return of greedy episodes, over all ranks."""
    env, total = gymnasium.make(ENV), torch.zeros(())
    for episode in range(EPISODES):
        obs, _ = env.reset(seed=seed + episode)
        is_over = False
        while not is_over:
            obs, reward, terminated, truncated, _ = env.step(greedy(network, obs))
            total += float(reward)
            is_over = terminated or truncated
    distributed.all_reduce(total)
    return float(total / (EPISODES * distributed.get_world_size()))


def learn(rank: int, ranks: int, address: str, steps: int, seed: int, folder: str) -> None:
    """Act and learn as one rank. Ranks find each other through a file in the folder; rank 0 writes the result there."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # all ranks are on this machine: listen on loopback only
    distributed.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    rng, own_seed = np.random.default_rng([seed, rank]), 1_000_000 * (seed * ranks + rank)
    torch.manual_seed(seed)
    network = make_network()
    target, learner = copy.deepcopy(network), DistributedDataParallel(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    table, mean = ReplayClient(address)[TABLE], 0.0
    sampling = table.sampler(BATCH_SIZE, beta=0.4, weight_norm="table", timeout_s=None, device="cpu")
    with table.writer() as writer, sampling as sampler:
        env = RecordSteps(gymnasium.make(ENV), writer)
        obs, _ = env.reset(seed=own_seed)
        for step in range(1, steps + 1):
            explores = rng.random() < max(0.05, 1.0 - step / EXPLORING)
            obs, _, terminated, truncated, _ = env.step(int(rng.integers(2)) if explores else greedy(network, obs))
            if terminated or truncated:
                obs, _ = env.reset()
            if step < LEARNING_STARTS:
                continue
            batch = next(sampler)
            errors = td_errors(learner, target, batch)
            optimizer.zero_grad()
            huber = nn.functional.huber_loss(errors, torch.zeros_like(errors), reduction="none")
            (batch.weights * huber).mean().backward()  # type: ignore[no-untyped-call]  # DDP averages the gradients
            nn.utils.clip_grad_norm_(network.parameters(), 10.0)
            optimizer.step()
            sampler.update_priorities(batch, errors.detach().abs())
            with torch.no_grad():
                for slow, fast in zip(target.parameters(), network.parameters(), strict=True):
                    slow.lerp_(fast, 0.01)
            if step % VALIDATE_INTERVAL == 0 or step == steps:
                mean = mean_return(network, own_seed + step)
                if rank == 0:
                    print(f"{step * ranks} steps, mean return {mean:.1f}", flush=True)
                if mean >= SOLVED:  # for all ranks at the same time
                    break
    if rank == 0:
        Path(folder, "mean_return").write_text(str(mean), "utf-8")
    distributed.destroy_process_group()


def main(address: str = "localhost:50051", *, ranks: int = 2, steps: int = 30_000, seed: int = 0) -> float:
    """Train until solved, or until each rank has taken all its steps; return the mean return of the last validation."""
    with ReplayClient(address) as client, tempfile.TemporaryDirectory() as folder:
        create_table(client)
        spawn(learn, (ranks, address, steps, seed, folder), ranks)  # type: ignore[no-untyped-call]
        return float(Path(folder, "mean_return").read_text("utf-8"))


if __name__ == "__main__":
    cyclopts.run(main)
