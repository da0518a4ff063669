"""PPO in lockstep: each actor plays a number of steps with each policy, and waits for the next one.

    replay-server                                   # in another terminal
    python examples/recipes/ppo.py --actors 2

An actor's steps of one policy are one sequence in a queue, with the observation after the last step. The sequence goes
on when an episode ends; `goes_on` is 0 there. Schulman et al. (2017), arXiv:1707.06347.
"""

from __future__ import annotations

import math
import multiprocessing
from contextlib import ExitStack

import cyclopts
import gymnasium
import torch
from replay_client import Column, ReplayClient, Sequences
from torch import Tensor, nn

ENV, POLICY, STEPS_QUEUE = "CartPole-v1", "ppo-policy", "ppo-steps"
STEPS, EPOCHS, MINIBATCH, CLIP, GAMMA, LAMBDA = 256, 10, 64, 0.2, 0.99, 0.95
COLUMNS = {"obs": Column("float32", 4), "action": Column("int64")}
COLUMNS |= {name: Column("float32") for name in ("reward", "goes_on", "log_mu")}


class Network(nn.Module):
    """Computes a policy's logits and a value: float32[..., 4] to float32[..., 2] and float32[..., 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
        self.value = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


def act(address: str, seed: int) -> None:
    """Play `STEPS` steps with each policy, and write them to the queue; for ever."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    network, env, client, version = Network(), gymnasium.make(ENV), ReplayClient(address), None
    obs, _ = env.reset(seed=seed)
    with client.table(STEPS_QUEUE).writer() as writer, torch.no_grad():
        while True:
            version, weights = client.latest(POLICY, wait_newer=version, timeout_s=math.inf)
            network.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
            for _ in range(STEPS):
                log_mu = network.policy(torch.from_numpy(obs)).log_softmax(-1)
                action = int(torch.multinomial(log_mu.exp(), 1))
                next_obs, reward, terminated, truncated, _ = env.step(action)
                if truncated and not terminated:  # the value of the state after it, which is not stored
                    reward = float(reward) + GAMMA * float(network.value(torch.from_numpy(next_obs)))
                goes_on, log = not (terminated or truncated), float(log_mu[action])
                writer.append(obs=obs, action=action, reward=reward, goes_on=float(goes_on), log_mu=log)
                obs = next_obs if goes_on else env.reset()[0]
            writer.end_episode(obs=obs)


def advantages_of(values: Tensor, rewards: Tensor, goes_on: Tensor) -> Tensor:
    """Return generalized advantages, float32[b, t], from values, float32[b, t + 1] (equations 11 and 12 of PPO)."""
    deltas = rewards + GAMMA * goes_on * values[:, 1:] - values[:, :-1]
    advantages, later = torch.empty_like(deltas), torch.zeros_like(deltas[:, 0])
    for step in reversed(range(deltas.shape[1])):
        later = deltas[:, step] + GAMMA * LAMBDA * goes_on[:, step] * later
        advantages[:, step] = later
    return advantages


def learn(network: Network, optimizer: torch.optim.Optimizer, obs: Tensor, columns: dict[str, Tensor]) -> None:
    """Take several epochs of gradient steps; obs: float32[b, t + 1, 4], the others: [b, t]."""
    with torch.no_grad():
        values = network.value(obs)[..., 0]
        advantage = advantages_of(values, columns["reward"], columns["goes_on"])
        named = {"obs": obs[:, :-1], "advantage": advantage, "target": advantage + values[:, :-1], **columns}
        flat = {name: column.flatten(0, 1) for name, column in named.items()}
    for _ in range(EPOCHS):
        for rows in torch.split(torch.randperm(len(flat["obs"])), MINIBATCH):
            part = {name: column[rows] for name, column in flat.items()}
            log_pi = network.policy(part["obs"]).log_softmax(-1)
            ratio = (log_pi.gather(1, part["action"][:, None])[:, 0] - part["log_mu"]).exp()
            scaled = (part["advantage"] - part["advantage"].mean()) / (part["advantage"].std() + 1e-8)
            gain = torch.minimum(ratio * scaled, ratio.clamp(1 - CLIP, 1 + CLIP) * scaled).mean()
            error = (network.value(part["obs"])[:, 0] - part["target"]).square().mean()
            optimizer.zero_grad()
            (-gain + 0.5 * error).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            optimizer.step()


def main(address: str = "localhost:50051", *, actors: int = 2, updates: int = 400, solved: float = 450.0) -> float:
    """Learn until episodes last long enough, and return their mean length in the newest 20 batches."""
    network, spawning, found, ends = Network(), multiprocessing.get_context("spawn"), 0.0, 0.0
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, eps=1e-5)
    with ExitStack() as stack:
        client = stack.enter_context(ReplayClient(address))
        for name in {POLICY, STEPS_QUEUE} & set(client):
            client.drop_table(name)  # of an earlier run
        steps = Sequences(STEPS + 1, period=STEPS + 1)
        table = client.create_table(STEPS_QUEUE, columns=COLUMNS, capacity=20_000, backend="fifo", steps=steps)
        client.publish(POLICY, network)
        for number in range(actors):
            process = spawning.Process(target=act, args=(address, number), daemon=True)
            process.start()
            stack.callback(process.terminate)
        sampler = stack.enter_context(table.sampler(actors, device="cpu", prefetch=1))
        for update in range(1, updates + 1):
            batch = next(sampler)
            learn(network, optimizer, batch["obs"], {name: batch[name][:, :-1] for name in COLUMNS if name != "obs"})
            client.publish(POLICY, network)
            ends += float((1.0 - batch["goes_on"][:, :-1]).sum())
            if update % 20 == 0:
                found, ends = 20 * actors * STEPS / max(1.0, ends), 0.0
                print(f"{update * actors * STEPS:,} steps: mean length of episodes {found:.0f}")
            if found >= solved > 0.0:
                break
    return found


if __name__ == "__main__":
    cyclopts.run(main)
