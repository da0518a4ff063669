"""Algorithms of sb3-contrib with prioritized replay; see `replay_client.sb3`.

PrioritizedQRDQN("MlpPolicy", env, replay_buffer_kwargs={"address": "localhost:50051", "table": "cartpole"})
"""

from __future__ import annotations

import torch
from sb3_contrib import QRDQN

from replay_client.sb3 import PrioritizedReplay, ServiceSamples


class PrioritizedQRDQN(PrioritizedReplay, QRDQN):
    """sb3-contrib's QR-DQN (Dabney et al. 2018, arXiv:1710.10044) with prioritized replay.

    Priorities are the absolute errors of the mean over the quantiles.
    """

    def _losses(self, samples: ServiceSamples) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            next_quantiles = self.quantile_net_target(samples.next_observations)
            best = next_quantiles.mean(dim=1).argmax(dim=1)
            targets = self._bootstrapped(samples, _of_actions(next_quantiles, best))
        quantiles = _of_actions(self.quantile_net(samples.observations), samples.actions[:, 0].long())
        return _huber_losses(quantiles, targets), (targets - quantiles.detach()).mean(dim=1)


def _of_actions(quantiles: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """The quantiles float32[batch, quantiles] of actions int64[batch], of float32[batch, quantiles, actions]."""
    return quantiles.gather(2, actions[:, None, None].expand(-1, quantiles.shape[1], 1))[:, :, 0]


def _huber_losses(quantiles: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The quantile Huber losses float32[batch] (Dabney et al. 2018, equation 10), without a mean over the batch."""
    middles = (torch.arange(quantiles.shape[1], device=quantiles.device) + 0.5) / quantiles.shape[1]
    errors = targets[:, None, :] - quantiles[:, :, None]
    huber = torch.nn.functional.huber_loss(errors, torch.zeros_like(errors), reduction="none")
    return ((middles[:, None] - (errors.detach() < 0).float()).abs() * huber).sum(dim=1).mean(dim=1)
