"""Algorithms of sb3-contrib with prioritized replay.

    PrioritizedQRDQN("MlpPolicy", env, replay_buffer_kwargs={"address": "localhost:50051", "table": "cartpole"})

See `replay_client.sb3` for the arguments.
"""

from __future__ import annotations

import torch
from sb3_contrib import QRDQN

from replay_client.sb3 import PrioritizedReplay, ServiceSamples


class PrioritizedQRDQN(PrioritizedReplay, QRDQN):
    """sb3-contrib's QR-DQN (Dabney et al. 2018, arXiv:1710.10044) with prioritized replay.

    The priority of a step is the absolute value of its TD error's mean over the quantiles.
    """

    def _losses(self, samples: ServiceSamples) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            next_quantiles = self.quantile_net_target(samples.next_observations)
            best = next_quantiles.mean(dim=1).argmax(dim=1)
            targets = self._bootstrapped(samples, _of_actions(next_quantiles, best))
        quantiles = _of_actions(self.quantile_net(samples.observations), samples.actions[:, 0].long())
        return _huber_losses(quantiles, targets), (targets - quantiles.detach()).mean(dim=1)


def _of_actions(quantiles: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Select the quantiles of one action per row: float32[batch, quantiles].

    ``quantiles`` is float32[batch, quantiles, actions], ``actions`` int64[batch].
    """
    return quantiles.gather(2, actions[:, None, None].expand(-1, quantiles.shape[1], 1))[:, :, 0]


def _huber_losses(quantiles: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Compute the quantile Huber loss of each row, float32[batch] (Dabney et al. 2018, equation 10)."""
    middles = (torch.arange(quantiles.shape[1], device=quantiles.device) + 0.5) / quantiles.shape[1]
    errors = targets[:, None, :] - quantiles[:, :, None]
    huber = torch.nn.functional.huber_loss(errors, torch.zeros_like(errors), reduction="none")
    return ((middles[:, None] - (errors.detach() < 0).float()).abs() * huber).sum(dim=1).mean(dim=1)
