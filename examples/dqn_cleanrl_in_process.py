"""Single-file DQN in the style of CleanRL (github.com/vwxyzjn/cleanrl), with vector environments and n-step returns.

    replay-server                                   # in another terminal
    python examples/dqn_cleanrl.py                  # prioritized replay from a table on the server
    python examples/dqn_cleanrl_in_process.py       # uniform replay from a buffer in this process

Both need the extra ``sb3``. They differ only in the buffer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Annotated, Any

import cyclopts
import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import RecordEpisodeStatistics
from stable_baselines3.common.buffers import NStepReplayBuffer as Buffer
from torch import nn


@dataclass(frozen=True)
class Args:
    """Command-line arguments of `main`."""

    address: str = "localhost:50051"
    seed: int = 1
    env_id: str = "CartPole-v1"
    num_envs: int = 4
    total_timesteps: int = 60_000
    learning_rate: float = 1e-3
    buffer_size: int = 20_000
    n_steps: int = 3
    gamma: float = 0.99
    target_network_frequency: int = 500
    batch_size: int = 128
    start_e: float = 1.0
    end_e: float = 0.05
    exploration_fraction: float = 0.4
    learning_starts: int = 2_000
    train_frequency: int = 8


def make_env(env_id: str) -> gymnasium.Env[Any, Any]:
    """Make one of the environments."""
    return RecordEpisodeStatistics(gymnasium.make(env_id))


class QNetwork(nn.Module):
    """Computes the values of all actions: float32[b, *shape] to float32[b, actions]."""

    def __init__(self, envs: Any) -> None:
        super().__init__()
        inputs = int(np.prod(envs.single_observation_space.shape))
        outputs = int(envs.single_action_space.n)
        hidden = (nn.Linear(inputs, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU())
        self.network = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(84, outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the values."""
        values: torch.Tensor = self.network(x)
        return values


def linear_schedule(start: float, end: float, duration: float, step: int) -> float:
    """Interpolate linearly from ``start`` to ``end`` over ``duration`` steps, then stay at ``end``."""
    return max(start + (end - start) * step / duration, end)


def main(args: Annotated[Args, cyclopts.Parameter(name="*")]) -> float:
    """Train, and return the mean return of the last episodes."""
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    envs: Any = gymnasium.vector.SyncVectorEnv(
        [lambda: make_env(args.env_id)] * args.num_envs, autoreset_mode=AutoresetMode.SAME_STEP
    )
    q_network, target_network = QNetwork(envs).to(device), QNetwork(envs).to(device)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = torch.optim.Adam(q_network.parameters(), lr=args.learning_rate)
    spaces = envs.single_observation_space, envs.single_action_space
    rb: Any = Buffer(
        args.buffer_size,
        *spaces,
        device,
        args.num_envs,
        n_steps=args.n_steps,
        gamma=args.gamma,
    )
    rb.reset()  # an existing table may hold rows from an earlier run
    returns: deque[float] = deque(maxlen=50)
    obs, _ = envs.reset(seed=args.seed)
    for step in range(0, args.total_timesteps, args.num_envs):
        epsilon = linear_schedule(args.start_e, args.end_e, args.exploration_fraction * args.total_timesteps, step)
        with torch.no_grad():
            greedy = q_network(torch.as_tensor(obs, device=device)).argmax(dim=1).cpu().numpy()
        is_random = rng.random(args.num_envs) < epsilon
        actions = np.where(is_random, rng.integers(envs.single_action_space.n, size=args.num_envs), greedy)
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)

        dones, timeouts = terminations | truncations, truncations & ~terminations
        real_next_obs = next_obs.copy()
        for env in dones.nonzero()[0]:  # these environments have already been reset
            real_next_obs[env] = infos["final_obs"][env]
            returns.append(float(infos["final_info"]["episode"]["r"][env]))
        rb.add(obs, real_next_obs, actions, rewards, dones, [{"TimeLimit.truncated": t} for t in timeouts])
        obs = next_obs

        if step >= args.learning_starts and step % args.train_frequency == 0:
            data = rb.sample(args.batch_size)
            with torch.no_grad():
                best = q_network(data.next_observations).argmax(dim=1, keepdim=True)
                next_values = target_network(data.next_observations).gather(1, best)
                targets = data.rewards + data.discounts * (1 - data.dones) * next_values
            values = q_network(data.observations).gather(1, data.actions)
            losses = nn.functional.smooth_l1_loss(values, targets, reduction="none")[:, 0]
            loss: Any = losses.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % args.target_network_frequency == 0:
            target_network.load_state_dict(q_network.state_dict())
        if step % 5_000 == 0:
            print(f"{step} steps, mean return {np.mean(returns or [0]):.1f}")
    envs.close()
    return float(np.mean(returns or [0]))


if __name__ == "__main__":
    cyclopts.run(main)
