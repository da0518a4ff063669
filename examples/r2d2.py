"""R2D2 (Kapturowski et al. 2019): a recurrent network learns CartPole from positions alone, without velocities.

    replay-server                     # in another terminal
    python examples/r2d2.py

Each step is stored once, with the state of the actor's LSTM before it. Every `PERIOD` steps, a sequence begins: the
state, `BURN_IN` steps that update it, `PERIOD` steps to learn from, and `N_STEP` more steps for their targets.
"""

from __future__ import annotations

from typing import Any

import cyclopts
import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TransformObservation
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from replay_client import Column, Discount, Mask, ReplayClient, Sequences
from replay_client.gymnasium import RecordSteps
from torch import Tensor, nn

BURN_IN, PERIOD, N_STEP = 8, 16, 5
HIDDEN, ACTIONS, ENVS, EPSILON = 64, 2, 8, 1e-3  # EPSILON belongs to the rescaling
POSITIONS = [0, 2]  # of the cart and of the pole


def make_env() -> gymnasium.Env[Any, Any]:
    """Make CartPole without velocities."""
    positions = gymnasium.spaces.Box(-np.inf, np.inf, (len(POSITIONS),))
    return TransformObservation(gymnasium.make("CartPole-v1"), lambda obs: obs[POSITIONS], positions)


class RecurrentQ(nn.Module):
    """An LSTM over observations that computes action values."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(len(POSITIONS), HIDDEN), nn.ReLU())
        self.cell = nn.LSTMCell(HIDDEN, HIDDEN)
        self.values = nn.Linear(HIDDEN, ACTIONS)

    def forward(self, obs: Tensor, state: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Compute values at all positions of a batch of sequences. Only positions that hold a step change the state.

        Args:
            obs: float32[b, t, 2]
            state: float32[b, 2, hidden], before the first position
            mask: bool[b, t], which positions hold a step

        Returns:
            float32[b, t, actions]: rescaled values; float32[b, 2, hidden]: the state after the last position.
        """
        outputs = []
        for encoded, is_step in zip(self.encoder(obs).unbind(1), mask.unbind(1), strict=True):
            after = torch.stack(self.cell(encoded, state.unbind(1)), 1)
            outputs.append(after[:, 0])
            state = torch.where(is_step[:, None, None], after, state)
        return self.values(torch.stack(outputs, 1)), state


def rescaled(x: Tensor) -> Tensor:
    """Return h(x) of Kapturowski et al. 2019, section 2.3, which compresses large returns."""
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + EPSILON * x


def unscaled(x: Tensor) -> Tensor:
    """Return the inverse of h (Pohlen et al. 2018, proposition A.2)."""
    root = (1 + 4 * EPSILON * (x.abs() + 1 + EPSILON)).sqrt()
    return x.sign() * (((root - 1) / (2 * EPSILON)) ** 2 - 1)


def n_step_targets(values: Tensor, reward: Tensor, discount: Tensor, mask: Tensor) -> Tensor:
    """Return n-step targets, float32[b, t - n]. At the end of an episode, they span fewer steps."""
    targets = values
    for length in range(values.shape[1] - 1, values.shape[1] - 1 - N_STEP, -1):
        after_step = reward[:, :length] + discount[:, :length] * targets[:, 1:]
        targets = torch.where(mask[:, :length], after_step, values[:, :length])  # a final observation keeps its value
    return targets


def td_errors(network: RecurrentQ, target: RecurrentQ, batch: Any) -> Tensor:
    """Return the TD errors of rescaled values (section 2.3), float32[b, PERIOD]."""
    before = batch["obs"][:, :BURN_IN], batch["state"].float(), batch["mask"][:, :BURN_IN]
    names = ("obs", "action", "reward", "discount", "mask")
    obs, action, reward, discount, mask = (batch[name][:, BURN_IN:] for name in names)
    with torch.no_grad():
        target_q, _ = target(obs, target(*before)[1], mask)
        state = network(*before)[1]
    q, _ = network(obs, state, mask)
    best = target_q.gather(2, q.detach().argmax(2, keepdim=True))[..., 0]
    chosen: Tensor = q.gather(2, action[..., None])[:, :PERIOD, 0]
    return rescaled(n_step_targets(unscaled(best), reward, discount, mask)) - chosen


def main(address: str = "localhost:50051", *, steps: int = 60_000, seed: int = 0) -> float:
    """Train, and return the mean return of the last episodes. An existing table is emptied first."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # faster for small tensors
    rng = np.random.default_rng(seed)
    replay = ReplayClient(address).create_table(
        "r2d2",
        columns={
            "obs": Column("float32", len(POSITIONS)),
            "action": Column("int64"),
            "reward": Column("float32"),
            "state": Column("float16", (2, HIDDEN), at="start"),
            "discount": Discount(),
            "mask": Mask(),
        },
        capacity=100_000,
        alpha=0.9,
        steps=Sequences(length=PERIOD + N_STEP, burn_in=BURN_IN, period=PERIOD, gamma=0.99),
        if_exists="reset",
    )
    envs = RecordEpisodeStatistics(SyncVectorEnv([make_env] * ENVS, autoreset_mode=AutoresetMode.SAME_STEP))
    network, target = RecurrentQ(), RecurrentQ()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    epsilons = 0.4 ** np.linspace(1, 8, ENVS)  # each actor explores at its own rate (Horgan et al. 2018)
    with replay.writer(streams=ENVS) as writer, replay.sampler(32, beta=0.6, timeout_s=None, device="cpu") as sampler:
        recorded = RecordSteps(envs, writer)
        obs, _ = recorded.reset(seed=seed)
        state = torch.zeros(ENVS, 2, HIDDEN)
        for step in range(0, steps, ENVS):
            recorded.with_next_step(state=state.numpy())
            with torch.no_grad():
                q, state = network(torch.as_tensor(obs)[:, None], state, torch.ones(ENVS, 1, dtype=torch.bool))
            actions = np.where(rng.random(ENVS) < epsilons, rng.integers(ACTIONS, size=ENVS), q[:, 0].argmax(1))
            obs, _, terminated, truncated, _ = recorded.step(actions)
            state[torch.as_tensor(terminated | truncated)] = 0  # the next observation begins an episode
            if step >= 1_000:
                batch = next(sampler)
                errors, learned = td_errors(network, target, batch), batch["mask"][:, BURN_IN : BURN_IN + PERIOD]
                loss = 0.5 * (errors**2 * learned).sum(1) / learned.sum(1)
                optimizer.zero_grad()
                (batch.weights * loss).mean().backward()
                nn.utils.clip_grad_norm_(network.parameters(), 10.0)
                optimizer.step()
                sampler.update_priorities(batch, errors.detach().abs())
            if step % 2_000 == 0:
                target.load_state_dict(network.state_dict())
                print(f"{step} steps, mean return {np.mean(envs.return_queue or [0]):.1f}")
    return float(np.mean(envs.return_queue or [0]))


if __name__ == "__main__":
    cyclopts.run(main)
