"""IMPALA: actors send unrolls through a queue, and a learner corrects for their older policies by V-trace.

    replay-server                                   # in another terminal
    python examples/recipes/impala.py --actors 2

An unroll has 20 steps; the next one begins where it ends, and the observation between them is stored once. When the
learner falls behind, the queue is full, and the actors wait. Espeholt et al. (2018), arXiv:1802.01561.
"""

from __future__ import annotations

import multiprocessing
from contextlib import ExitStack
from typing import Any

import cyclopts
import gymnasium
import torch
from replay_client import Column, Derived, Discount, Mask, ReplayClient, Sequences
from torch import Tensor, nn

ENV, POLICY, UNROLLS = "CartPole-v1", "impala-policy", "impala-unrolls"
STEPS, BATCH_SIZE, GAMMA, ENTROPY = 20, 16, 0.99, 0.01
COLUMNS: dict[str, Column | Derived] = {"obs": Column("float32", 4), "action": Column("int64")}
COLUMNS |= {"reward": Column("float32"), "log_mu": Column("float32"), "discount": Discount(), "mask": Mask()}


class Network(nn.Module):
    """Computes a policy's logits and a value: float32[..., 4] to float32[..., 2] and float32[..., 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
        self.value = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


def act(address: str, seed: int) -> None:
    """Play with the newest policy, and write the steps to the queue; for ever."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    network, env, client = Network(), gymnasium.make(ENV), ReplayClient(address)
    obs, _ = env.reset(seed=seed)
    with client.table(UNROLLS).writer() as writer:
        while True:
            _, weights = client.latest(POLICY)
            network.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
            for _ in range(5 * STEPS):
                with torch.no_grad():
                    log_mu = network.policy(torch.from_numpy(obs)).log_softmax(-1)
                action = int(torch.multinomial(log_mu.exp(), 1))
                next_obs, reward, terminated, truncated, _ = env.step(action)
                writer.append(obs=obs, action=action, reward=reward, log_mu=float(log_mu[action]))
                obs = next_obs
                if terminated or truncated:
                    writer.end_episode(obs=obs, terminated=terminated)
                    obs, _ = env.reset()


def v_trace(values: Tensor, rewards: Tensor, discounts: Tensor, rhos: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return targets and advantages, float32[b, t], from values float32[b, t + 1] (equation 1 and section 4.2)."""
    deltas = rhos * (rewards + discounts * values[:, 1:] - values[:, :-1]) * mask
    targets, correction = values.clone(), torch.zeros_like(values[:, 0])
    for step in reversed(range(rewards.shape[1])):
        correction = deltas[:, step] + discounts[:, step] * rhos[:, step] * mask[:, step] * correction
        targets[:, step] += correction
    return targets[:, :-1], rhos * (rewards + discounts * targets[:, 1:] - values[:, :-1])


def loss_of(network: Network, batch: Any) -> Any:
    """Return the loss of a batch of unrolls. Their last position is only the observation after the last step."""
    action, reward, log_mu, discount, mask = (batch[name][:, :-1] for name in COLUMNS if name != "obs")
    log_pi, values = network.policy(batch["obs"][:, :-1]).log_softmax(-1), network.value(batch["obs"])[..., 0]
    taken = log_pi.gather(-1, action[..., None])[..., 0]
    with torch.no_grad():
        targets, advantages = v_trace(values, reward, discount, (taken - log_mu).exp().clamp(max=1.0), mask)
    negative_entropy = (log_pi.exp() * log_pi).sum(-1)
    losses = -taken * advantages + 0.5 * (targets - values[:, :-1]) ** 2 + ENTROPY * negative_entropy
    return (losses * mask).sum() / mask.sum()


def main(address: str = "localhost:50051", *, actors: int = 2, updates: int = 2_000, solved: float = 400.0) -> float:
    """Learn until episodes last long enough, and return their mean length in the newest 100 batches."""
    torch.manual_seed(0)
    network, spawning, found, ends = Network(), multiprocessing.get_context("spawn"), 0.0, 0.0
    optimizer, unrolls = (
        torch.optim.Adam(network.parameters(), lr=1e-3),
        Sequences(STEPS + 1, period=STEPS, gamma=GAMMA),
    )
    with ExitStack() as stack:
        client = stack.enter_context(ReplayClient(address))
        for name in {POLICY, UNROLLS} & set(client):
            client.drop_table(name)  # of an earlier run
        table = client.create_table(UNROLLS, columns=COLUMNS, capacity=4_000, backend="fifo", steps=unrolls)
        client.publish(POLICY, network)
        for number in range(actors):
            process = spawning.Process(target=act, args=(address, number), daemon=True)
            process.start()
            stack.callback(process.terminate)
        sampler = stack.enter_context(table.sampler(BATCH_SIZE, device="cpu"))
        for update in range(1, updates + 1):
            batch = next(sampler)
            optimizer.zero_grad()
            loss_of(network, batch).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            client.publish(POLICY, network)
            # An unroll without a step in its last position has the end of an episode.
            ends += float((batch["mask"][:, STEPS] == 0).sum())
            if update % 100 == 0:
                found, ends = 100 * BATCH_SIZE * STEPS / max(1.0, ends), 0.0
                print(f"{update * BATCH_SIZE * STEPS:,} steps: mean length of episodes {found:.0f}")
                if found >= solved:
                    break
    return found


if __name__ == "__main__":
    cyclopts.run(main)
