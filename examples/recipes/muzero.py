"""MuZero with reanalysis: a learned model plans, and old steps get new targets from the newest model.

    replay-server                                   # in another terminal
    python examples/recipes/muzero.py

Values and policies are mutable columns. Another process draws sequences, searches with the newest weights, and writes
them again (Schrittwieser et al. 2019, arXiv:1911.08265). The search looks at all sequences of `DEPTH` actions.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

import cyclopts
import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import RecordEpisodeStatistics
from replay_client import Column, Derived, Discount, Mask, ReplayClient, Sequences
from replay_client.gymnasium import RecordSteps
from torch import Tensor, nn

ENV, WEIGHTS, GAMES = "CartPole-v1", "muzero-weights", "muzero-games"
UNROLL, N_STEP, DEPTH, BATCH_SIZE, GAMMA, TEMPERATURE = 5, 10, 3, 128, 0.99, 0.005  # GAMMA is that of `Sequences`
SEQUENCES = Sequences(UNROLL + N_STEP + 1)
COLUMNS: dict[str, Column | Derived] = {"obs": Column("float32", 4), "action": Column("int64"), "mask": Mask()}
COLUMNS |= {"reward": Column("float32"), "discount": Discount(), "value": Column("float32", mutable=True)}
COLUMNS |= {"policy": Column("float32", 2, mutable=True)}


class Model(nn.Module):
    """Predicts policies, values and rewards of states that it computes itself. Rewards are scaled by 1 - GAMMA."""

    def __init__(self) -> None:
        super().__init__()
        self.represent = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 32), nn.LayerNorm(32))
        self.dynamics = nn.Sequential(nn.Linear(34, 64), nn.ReLU(), nn.Linear(64, 32), nn.LayerNorm(32))
        self.heads = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))

    def step(self, state: Tensor, action: Tensor) -> Any:
        """Return the next states, float32[b, 32]; action: int64[b]."""
        return self.dynamics(torch.cat([state, torch.eye(2)[action]], 1))

    def predict(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log policies, float32[b, 2], values and the rewards on the way to the states, float32[b] each."""
        out = self.heads(state)
        return out[:, :2].log_softmax(1), out[:, 2], out[:, 3]


@torch.no_grad()
def search(model: Model, state: Tensor, depth: int = DEPTH) -> tuple[Tensor, Tensor, Tensor]:
    """Return better policies (Grill et al. 2020, arXiv:2007.12509), float32[b, 2], values and rewards, float32[b]."""
    policy, value, reward = model.predict(state)
    if depth:
        following = model.step(state.repeat_interleave(2, 0), torch.arange(2).repeat(len(state)))
        _, values, rewards = search(model, following, depth - 1)
        q = (rewards + GAMMA * values).view(-1, 2)
        policy = (policy + q / TEMPERATURE).softmax(1)
        value = (policy * q).sum(1)
    return policy, value, reward


def reanalyze(address: str) -> None:
    """Write new values and policies into sequences that are drawn at random; for ever."""
    torch.set_num_threads(1)
    model, client = Model(), ReplayClient(address)
    with client.table(GAMES).sampler(32, device="cpu") as sampler:
        for batch in sampler:
            model.load_state_dict({name: torch.from_numpy(array) for name, array in client.latest(WEIGHTS)[1].items()})
            policy, value, _ = search(model, model.represent(batch["obs"].flatten(0, 1)))
            keys, values = batch.position_keys, value.view(batch["mask"].shape) * batch["mask"]
            sampler.update(keys, {"value": values, "policy": policy.view(*keys.shape, 2)})


def loss_of(model: Model, batch: Any) -> Any:
    """Return the loss of a batch: of policies, values and rewards along `UNROLL` steps of the model."""
    rewards, targets, state = (1 - GAMMA) * batch["reward"], batch["value"], model.represent(batch["obs"][:, 0])
    known = batch["mask"] | (((batch["discount"] == 0) & batch["mask"]).cumsum(1) > 0)  # not after a truncation
    for _ in range(N_STEP):  # at the end of an episode, returns span fewer steps
        returns = rewards[:, :-1] + batch["discount"][:, :-1] * targets[:, 1:]
        targets[:, :-1] = returns.where(known[:, 1:], targets[:, :-1])
    losses = []
    for step in range(UNROLL + 1):
        log_policy, value, reward = model.predict(state)
        errors = (value - targets[:, step]) ** 2 + (reward - rewards[:, step - 1]) ** 2 * (step > 0)
        fit = (batch["policy"][:, step] * log_policy).sum(1) * batch["mask"][:, step]
        losses.append(10 * errors * known[:, step] - fit)
        state = model.step(0.5 * state + 0.5 * state.detach(), batch["action"][:, step])
    return torch.stack(losses).sum(0).mean()


def main(address: str = "localhost:50051", *, steps: int = 30_000) -> float:
    """Play and learn, and return the mean length of the newest 20 episodes."""
    torch.manual_seed(0)
    played, model = RecordEpisodeStatistics(gymnasium.make(ENV), buffer_length=20), Model()
    optimizer, client = torch.optim.Adam(model.parameters(), lr=1e-3), ReplayClient(address)
    table = client.create_table(GAMES, columns=COLUMNS, capacity=50_000, steps=SEQUENCES, if_exists="reset")
    client.publish(WEIGHTS, model)
    (process := multiprocessing.get_context("spawn").Process(target=reanalyze, args=(address,), daemon=True)).start()
    with table.writer() as writer, table.sampler(BATCH_SIZE, device="cpu") as sampler:
        obs, _ = (env := RecordSteps(played, writer)).reset(seed=0)
        for step in range(1, steps + 1):
            policy, value, _ = search(model, model.represent(torch.from_numpy(obs)[None]))
            env.with_next_step(value=value[0], policy=policy[0])
            obs, _, terminated, truncated, _ = env.step(int(torch.multinomial(0.95 * policy[0] + 0.025, 1)))
            obs = env.reset()[0] if terminated or truncated else obs
            if step >= 1_000 and step % 4 == 0:
                optimizer.zero_grad()
                loss_of(model, next(sampler)).backward()
                optimizer.step()
            if step % 100 == 0:
                client.publish(WEIGHTS, model)
                print(f"\r{step:,} steps, mean length of episodes {np.mean(played.length_queue):.0f}", end="  ")
    process.terminate()
    return float(np.mean(played.length_queue))


if __name__ == "__main__":
    cyclopts.run(main)
