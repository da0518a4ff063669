"""Single-file SAC in the style of CleanRL (github.com/vwxyzjn/cleanrl), with uniform replay.

    pip install 'gymnasium[mujoco]'
    replay-server                                   # in another terminal
    python examples/sac_cleanrl.py                  # replay from a table on the server
    python examples/sac_cleanrl.py --in-process     # replay from a buffer in this process

It needs the extra ``sb3``. Haarnoja et al. (2018), arXiv:1812.05905, with its automatic temperature.
"""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass
from typing import Annotated, Any

import cyclopts
import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import RecordEpisodeStatistics
from replay_client.sb3 import ServiceReplayBuffer
from stable_baselines3.common.buffers import ReplayBuffer
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Args:
    """Command-line arguments of `main`."""

    address: str = "localhost:50051"
    in_process: bool = False
    seed: int = 1
    env_id: str = "Hopper-v5"
    total_timesteps: int = 1_000_000
    buffer_size: int = 1_000_000
    batch_size: int = 256
    learning_starts: int = 5_000
    gamma: float = 0.99
    tau: float = 0.005
    policy_lr: float = 3e-4
    q_lr: float = 1e-3
    policy_frequency: int = 2


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """Return a network with two hidden layers."""
    return nn.Sequential(nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, outputs))


class Actor(nn.Module):
    """Draws actions from a squashed normal distribution."""

    def __init__(self, inputs: int, space: Any) -> None:
        super().__init__()
        self.network = mlp(inputs, 2 * space.shape[0])
        self.register_buffer("scale", torch.as_tensor((space.high - space.low) / 2))
        self.register_buffer("center", torch.as_tensor((space.high + space.low) / 2))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions, float32[b, *shape], and the logarithms of their probabilities, float32[b, 1]."""
        mean, raw_log_std = self.network(obs).chunk(2, 1)
        log_std = -5.0 + 3.5 * (raw_log_std.tanh() + 1.0)
        noise = torch.randn_like(mean)
        squashed = (mean + log_std.exp() * noise).tanh()
        log_density = -0.5 * noise.square() - log_std - 0.5 * np.log(2.0 * np.pi)
        log_density = log_density - (self.scale * (1.0 - squashed.square()) + 1e-6).log()
        return squashed * self.scale + self.center, log_density.sum(1, keepdim=True)


def main(args: Annotated[Args, cyclopts.Parameter(name="*")]) -> float:
    """Train, and return the mean return of the last episodes."""
    torch.manual_seed(args.seed)
    env = RecordEpisodeStatistics(gymnasium.make(args.env_id))
    env.action_space.seed(args.seed)
    spaces: Any = env.observation_space, env.action_space
    inputs, actions = spaces[0].shape[0], spaces[1].shape[0]
    actor, q1, q2 = Actor(inputs, spaces[1]), mlp(inputs + actions, 1), mlp(inputs + actions, 1)
    critics: Any = nn.ModuleList([q1, q2])
    targets: Any = copy.deepcopy(critics).requires_grad_(False)
    log_alpha = torch.zeros(1, requires_grad=True)
    q_optimizer = torch.optim.Adam(critics.parameters(), lr=args.q_lr)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=args.policy_lr)
    alpha_optimizer = torch.optim.Adam([log_alpha], lr=args.q_lr)
    kind: Any = ReplayBuffer if args.in_process else ServiceReplayBuffer
    service = {"address": args.address, "table": "sac-cleanrl", "backend": "uniform"}
    options = {} if args.in_process else service
    rb = kind(args.buffer_size, *spaces, "cpu", handle_timeout_termination=False, **options)
    rb.reset()  # an existing table may hold rows from an earlier run
    returns: deque[float] = deque(maxlen=20)
    obs, _ = env.reset(seed=args.seed)
    for step in range(args.total_timesteps):
        action = env.action_space.sample()
        if step >= args.learning_starts:
            with torch.no_grad():
                action = actor(torch.as_tensor(obs[None], dtype=torch.float32))[0][0].numpy()
        next_obs, reward, is_terminated, is_truncated, info = env.step(action)
        rb.add(obs[None], next_obs[None], action[None], np.array([reward]), np.array([is_terminated]), [info])
        obs = next_obs
        if is_terminated or is_truncated:
            returns.append(float(info["episode"]["r"]))
            print(f"{step} steps, mean return {np.mean(returns):.1f}")
            obs, _ = env.reset()
        if step < args.learning_starts:
            continue
        data = rb.sample(args.batch_size)
        seen, seen_next = data.observations.float(), data.next_observations.float()
        with torch.no_grad():
            next_action, log_density = actor(seen_next)
            following = torch.stack([q(torch.cat([seen_next, next_action], 1)) for q in targets]).amin(0)
            following -= log_alpha.exp() * log_density
            due = data.rewards + args.gamma * (1.0 - data.dones) * following
        q_loss: Any = sum(functional.mse_loss(q(torch.cat([seen, data.actions], 1)), due) for q in critics)
        q_optimizer.zero_grad()
        q_loss.backward()
        q_optimizer.step()
        for _ in range(args.policy_frequency if step % args.policy_frequency == 0 else 0):
            action_now, log_density = actor(seen)
            value = torch.stack([q(torch.cat([seen, action_now], 1)) for q in critics]).amin(0)
            actor_loss: Any = (log_alpha.detach().exp() * log_density - value).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()
            alpha_loss: Any = -(log_alpha.exp() * (log_density.detach() - actions)).mean()
            alpha_optimizer.zero_grad()
            alpha_loss.backward()
            alpha_optimizer.step()
        for slow, fast in zip(targets.parameters(), critics.parameters(), strict=True):
            slow.data.lerp_(fast.data, args.tau)
    env.close()
    return float(np.mean(returns or [0.0]))


if __name__ == "__main__":
    cyclopts.run(main)
