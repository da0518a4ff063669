"""Distributed evaluation: evaluators in other processes follow the newest weights, and report returns through a queue.

    replay-server                                   # in another terminal
    python examples/recipes/evaluation.py --evaluators 2

The learner publishes its network every few hundred steps and goes on. Each evaluator waits for weights that it has not
seen, plays greedy episodes, and inserts their mean return into a queue.
"""

from __future__ import annotations

import copy
import math
import multiprocessing
from contextlib import ExitStack
from typing import Any

import cyclopts
import gymnasium
import numpy as np
import torch
from replay_client import Column, Derived, Discount, Next, ReplayClient, Return, Table, Transitions
from replay_client.gymnasium import RecordSteps
from torch import nn

ENV, POLICY, RETURNS = "CartPole-v1", "evaluated-policy", "evaluated-returns"
BATCH_SIZE, LEARNING_STARTS, EXPLORING, PUBLISH_INTERVAL, EPISODES = 64, 500, 5_000, 500, 10
COLUMNS: dict[str, Column | Derived] = {"obs": Column("float32", 4), "action": Column("int64")}
COLUMNS |= {"reward": Column("float32", sampled=False), "n_return": Return("reward")}
COLUMNS |= {"next_obs": Next("obs"), "discount": Discount()}


def make_network() -> nn.Module:
    """Create a network that computes the values of both actions: float32[b, 4] to float32[b, 2]."""
    return nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))


def greedy(network: nn.Module, obs: Any) -> int:
    """Return the best action."""
    return int(network(torch.as_tensor(obs)).argmax())


def returns_table(client: ReplayClient) -> Table:
    """Open the queue of returns."""
    columns = {"version": Column("int64"), "return": Column("float32")}
    return client.create_table(RETURNS, columns=columns, capacity=1e4, backend="fifo", if_exists="open")


def evaluate(address: str, seed: int) -> None:
    """Play episodes with each network that is the newest when the last one is done; for ever."""
    torch.set_num_threads(1)
    network, env, version, client = make_network(), gymnasium.make(ENV), None, ReplayClient(address)
    returns = returns_table(client)
    while True:
        version, weights = client.latest(POLICY, wait_newer=version, timeout_s=math.inf)
        network.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
        totals = [episode_return(env, network, seed + episode) for episode in range(EPISODES)]
        returns.insert({"version": [version], "return": [np.mean(totals)]})


def episode_return(env: gymnasium.Env[Any, Any], network: nn.Module, seed: int) -> float:
    """Return the return of a greedy episode."""
    (obs, _), total, is_over = env.reset(seed=seed), 0.0, False
    while not is_over:
        obs, reward, terminated, truncated, _ = env.step(greedy(network, obs))
        total, is_over = total + float(reward), terminated or truncated
    return total


def main(address: str = "localhost:50051", *, evaluators: int = 1, steps: int = 40_000, solved: float = 475.0) -> float:
    """Learn until an evaluator finds the environment solved, and return the best mean return of a network."""
    torch.manual_seed(0)
    rng, network = np.random.default_rng(0), make_network()
    target, optimizer = copy.deepcopy(network), torch.optim.Adam(network.parameters(), lr=1e-3)
    best, spawning = 0.0, multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        client = stack.enter_context(ReplayClient(address))
        for name in {POLICY, RETURNS} & set(client):
            client.drop_table(name)  # of an earlier run
        returns = returns_table(client)
        for number in range(evaluators):
            process = spawning.Process(target=evaluate, args=(address, 1_000_000 * (number + 1)), daemon=True)
            process.start()
            stack.callback(process.terminate)
        options: dict[str, Any] = {"capacity": 5e4, "steps": Transitions(n_step=3, gamma=0.99), "if_exists": "reset"}
        table = client.create_table("evaluated", columns=COLUMNS, **options)
        env = RecordSteps(gymnasium.make(ENV), stack.enter_context(table.writer()))
        sampler = stack.enter_context(table.sampler(BATCH_SIZE, device="cpu"))
        obs, _ = env.reset(seed=0)
        for step in range(1, steps + 1):
            explores = rng.random() < max(0.05, 1.0 - step / EXPLORING)
            obs, _, terminated, truncated, _ = env.step(int(rng.integers(2)) if explores else greedy(network, obs))
            if terminated or truncated:
                obs, _ = env.reset()
            if step < LEARNING_STARTS:
                continue
            batch = next(sampler)
            with torch.no_grad():
                due = batch["n_return"] + batch["discount"] * target(batch["next_obs"]).amax(1)
            values = network(batch["obs"]).gather(1, batch["action"][:, None])[:, 0]
            optimizer.zero_grad()
            loss: Any = batch.weights * nn.functional.huber_loss(values, due, reduction="none")
            loss.mean().backward()
            optimizer.step()
            sampler.update_priorities(batch, (due - values).detach().abs())
            for slow, fast in zip(target.parameters(), network.parameters(), strict=True):
                slow.data.lerp_(fast.data, 0.01)
            if step % PUBLISH_INTERVAL == 0:
                client.publish(POLICY, network)
                while returns.size():
                    arrived = returns.sample(1)
                    best = max(best, float(arrived["return"][0]))
                    print(f"{step} steps: version {arrived['version'][0]} has returned {arrived['return'][0]:.1f}")
                if best >= solved:
                    break
    return best


if __name__ == "__main__":
    cyclopts.run(main)
