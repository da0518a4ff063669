"""QR-DQN in one file: a network and a loss of one's own, trained by replay-train's loop.

    replay-server                                   # in another terminal
    python examples/qr_dqn.py

Quantile regression (Dabney et al. 2018, arXiv:1710.10044) learns a distribution of returns: N quantiles for each
action. Actions are chosen by the mean.
"""

from __future__ import annotations

import cyclopts
import torch
from replay_agent import DoubleDQN, LossResult, NetworkSpec, Trainer, TransitionBatch
from rich.console import Console
from torch import Tensor, nn

QUANTILES = 32


class Network(nn.Module):
    """Computes quantiles of returns: float32[batch, *observation_shape] to float32[batch, actions, quantiles]."""

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        (features,) = spec.observation_shape
        self.body = nn.Sequential(nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.head = nn.Linear(128, spec.actions * QUANTILES)

    def forward(self, obs: Tensor) -> Tensor:
        """Return the quantiles of each action."""
        quantiles: Tensor = self.head(self.body(obs)).unflatten(1, (-1, QUANTILES))
        return quantiles

    def action_values(self, obs: Tensor) -> Tensor:
        """Return the means, by which actions are chosen: float32[batch, actions]."""
        return self.forward(obs).mean(2)


class QRDQN(DoubleDQN):
    """Learns quantiles. Priorities are absolute errors of the means."""

    def compute_loss(self, batch: TransitionBatch) -> LossResult:
        """Return the quantile Huber loss (equations 9 and 10), with targets as in Double DQN."""
        rows = torch.arange(len(batch.action), device=batch.action.device)
        quantiles = self.online(batch.obs)[rows, batch.action]
        with torch.no_grad():
            next_action = self.online(batch.next_obs).mean(2).argmax(1)
            next_quantiles = self.target(batch.next_obs)[rows, next_action]
            targets = batch.reward[:, None] + batch.discount[:, None] * next_quantiles
        loss = (batch.weights * quantile_huber_losses(quantiles, targets)).mean()
        errors = targets.mean(1) - quantiles.detach().mean(1)
        return LossResult(loss, errors.abs(), quantiles.detach().mean())


def quantile_huber_losses(quantiles: Tensor, targets: Tensor) -> Tensor:
    """Return the losses, float32[batch], of quantiles, float32[batch, n], given targets, float32[batch, m]."""
    fractions = (torch.arange(quantiles.shape[1], device=quantiles.device) + 0.5) / quantiles.shape[1]
    errors = targets[:, None, :] - quantiles[:, :, None]
    huber = nn.functional.huber_loss(errors, torch.zeros_like(errors), reduction="none")
    asymmetric = (fractions[:, None] - (errors.detach() < 0).float()).abs() * huber
    return asymmetric.mean(2).sum(1)


def main(address: str = "localhost:50051", *, env: str = "CartPole-v1", seed: int = 0) -> None:
    """Train on CartPole-v1 until it is solved."""
    trainer = Trainer(env, server=address, learner=QRDQN, network=Network, seed=seed)
    trainer.run().show(Console())


if __name__ == "__main__":
    cyclopts.run(main)
