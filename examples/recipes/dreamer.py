"""Dreamer: a world model learns from sequences that cross the ends of episodes, and an actor learns in its dreams.

    replay-server                                   # in another terminal
    python examples/recipes/dreamer.py

The stream of steps never ends; `is_first` marks the beginnings of episodes. Latents are mutable: sequences begin with
a stored one, and newer ones are written back. Hafner et al. (2023), arXiv:2301.04104, with deterministic latents.
"""

from __future__ import annotations

from typing import Any

import cyclopts
import gymnasium
import numpy as np
import torch
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from replay_client import Column, ReplayClient, Sequences
from torch import Tensor, nn

LENGTH, BATCH_SIZE, HORIZON, GAMMA, LAMBDA, ENTROPY, LEARNING_RATE = 17, 16, 12, 0.98, 0.95, 0.03, 7e-4
ENVS, HIDDEN, LATENT, DRAWN = 4, 64, 96, Sequences(LENGTH)
COLUMNS = {"obs": Column("float32", 4), "action": Column("int64"), "reward": Column("float32")}
COLUMNS |= {"is_first": Column("bool"), "cont": Column("float32")}
COLUMNS |= {"latent": Column("float32", LATENT, at="start", mutable=True)}


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """Return a network with two hidden layers."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, outputs))


class Dreamer(nn.Module):
    """A latent has a recurrent part, float32[b, HIDDEN], and one that is seen or foreseen, float32[b, 32]."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.seen, self.foreseen = nn.GRUCell(34, HIDDEN), mlp(HIDDEN + 4, 32), mlp(HIDDEN, 32)
        self.decoder, self.actor, self.critic = mlp(LATENT, 6), mlp(LATENT, 2), mlp(LATENT, 1)

    def dream(self, latent: Tensor, action: Tensor) -> Tensor:
        """Return the latents after actions, int64[b], without an observation."""
        hidden = self.recurrent(torch.cat([latent[:, HIDDEN:], torch.eye(2)[action]], 1), latent[:, :HIDDEN])
        return torch.cat([hidden, self.foreseen(hidden).tanh()], 1)

    def observe(self, latent: Tensor, action: Tensor, obs: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
        """Return the latents after actions and observations, and those without the observations."""
        dreamed = self.dream(latent * ~is_first[:, None], action * ~is_first)
        seen = self.seen(torch.cat([dreamed[:, :HIDDEN], obs], 1)).tanh()
        return torch.cat([dreamed[:, :HIDDEN], seen], 1), dreamed


def model_loss(model: Dreamer, batch: Any) -> tuple[Any, Tensor]:
    """Return the loss of the world model, and the latents from the second position on, float32[b, t - 1, LATENT]."""
    latent, latents, losses = batch["latent"], [], []
    for step in range(1, LENGTH):
        obs, cont = batch["obs"][:, step], batch["cont"][:, step]
        latent, dreamed = model.observe(latent, batch["action"][:, step - 1], obs, batch["is_first"][:, step])
        decoded = model.decoder(latent)
        losses.append(((decoded[:, :4] - obs) ** 2).sum(1) + (decoded[:, 4] - batch["reward"][:, step]) ** 2)
        losses.append(nn.functional.binary_cross_entropy_with_logits(decoded[:, 5], cont, reduction="none"))
        losses.append(((dreamed - latent.detach()) ** 2).sum(1) + 0.1 * ((dreamed.detach() - latent) ** 2).sum(1))
        latents.append(latent)
    return torch.stack(losses).sum(0).mean() / LENGTH, torch.stack(latents, 1)


def dream_loss(model: Dreamer, latent: Tensor) -> Any:
    """Return the loss of actor and critic, from dreams that begin with these latents, float32[b, LATENT]."""
    latents, policies = [latent], []
    for _ in range(HORIZON):
        log_pi = model.actor(latents[-1]).log_softmax(1)
        action = torch.multinomial(log_pi.detach().exp(), 1)
        policies.append(torch.stack([log_pi.gather(1, action)[:, 0], -(log_pi.exp() * log_pi).sum(1)]))
        with torch.no_grad():
            latents.append(model.dream(latents[-1], action[:, 0]))
    dreams, (taken, entropy) = torch.stack(latents), torch.stack(policies, 1)
    values, decoded = model.critic(dreams)[..., 0], model.decoder(dreams).detach()
    discount, returns = GAMMA * decoded[1:, :, 5].sigmoid(), [values[-1].detach()]
    for step in reversed(range(HORIZON)):
        following = torch.lerp(values[step + 1].detach(), returns[-1], LAMBDA)
        returns.append(decoded[step + 1, :, 4] + discount[step] * following)
    targets = torch.stack(returns[:0:-1])
    weights = torch.cat([torch.ones_like(discount[:1]), discount[:-1]]).cumprod(0)  # dreams after the end do not count
    advantages = (targets - values[:-1].detach()) / (targets.std() + 1)
    losses = -taken * advantages - ENTROPY * entropy + 0.5 * (targets - values[:-1]) ** 2
    return (losses * weights).mean()


def main(address: str = "localhost:50051", *, steps: int = 20_000) -> float:
    """Play and learn, and return the mean length of the newest 20 episodes."""
    torch.manual_seed(0)
    envs, model = RecordEpisodeStatistics(gymnasium.make_vec("CartPole-v1", ENVS), buffer_length=20), Dreamer()
    optimizer, client = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE), ReplayClient(address)
    table = client.create_table("dreamer", columns=COLUMNS, steps=DRAWN, capacity=100_000, if_exists="reset")
    with table.writer(streams=ENVS) as writer, table.sampler(BATCH_SIZE, device="cpu") as sampler:
        latent, action = torch.zeros(ENVS, LATENT), torch.zeros(ENVS, dtype=torch.int64)
        (obs, _), reward, no = envs.reset(seed=0), np.zeros(ENVS), np.zeros(ENVS, bool)
        is_first, is_over, terminated = ~no, no, no
        for step in range(0, steps, ENVS):
            with torch.no_grad():
                latent, _ = model.observe(latent, action, torch.from_numpy(obs), torch.from_numpy(is_first))
                action = torch.multinomial(model.actor(latent).softmax(1), 1)[:, 0]
            writer.append_all(obs=obs, action=action, reward=reward, is_first=is_first, cont=~terminated, latent=latent)
            obs, reward, terminated, truncated, _ = envs.step(action.numpy())
            is_first, is_over = is_over, terminated | truncated  # the step after the last one only resets
            if step >= 1_000 and step % (2 * ENVS) == 0:
                batch = next(sampler)
                loss, latents = model_loss(model, batch)
                optimizer.zero_grad()
                optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / steps)  # a constant one is less stable
                (loss + dream_loss(model, latents[:, ::2].detach().flatten(0, 1))).backward()
                optimizer.step()
                sampler.update(batch.position_keys[:, 1:], {"latent": latents})
                print(f"\r{step:,} steps, mean length of episodes {np.mean(envs.length_queue):.0f}", end="  ")
    return float(np.mean(envs.length_queue))


if __name__ == "__main__":
    cyclopts.run(main)
