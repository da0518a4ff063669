"""C51: learns the distribution of returns of each action, by Bellemare et al. (2017, arXiv:1707.06887)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from replay_agent.dqn.double_dqn import DoubleDQN, TransitionBatch
from replay_agent.dqn.learner import LossResult
from replay_agent.dqn.networks import DistributionalQNetwork


def projected(probabilities: Tensor, returns: Tensor, support: Tensor) -> Tensor:
    """Project distributions onto the atoms of a support, equation 7 of the paper.

    Args:
        probabilities: float32[batch, n].
        returns: float32[batch, n], the return of each probability.
        support: float32[atoms], two or more, equally spaced.

    Returns:
        float32[batch, atoms]. Each probability is divided between the two atoms next to its return. Returns outside the
        support belong to its first or last atom.
    """
    spacing = support[1] - support[0]
    inside = returns.clamp(support[0], support[-1])
    shares = (1 - (inside.unsqueeze(1) - support.unsqueeze(1)).abs() / spacing).clamp(0, 1)
    return (shares * probabilities.unsqueeze(1)).sum(dim=2)


class C51(DoubleDQN):
    """Learns distributions of returns. Priorities are KL divergences, as in Rainbow (Hessel et al., 2018)."""

    algorithm = "c51"

    def compute_loss(self, batch: TransitionBatch) -> LossResult:
        """See `Learner.compute_loss`."""
        online = cast(DistributionalQNetwork, self.online)
        targets = self._distributions(batch)
        logits = _of_actions(online(batch.obs), batch.action)
        divergences = functional.kl_div(logits.log_softmax(dim=1), targets, reduction="none").sum(dim=1)
        values = logits.detach().softmax(dim=1) @ online.support
        # The exact divergence is at least 0.
        return LossResult((batch.weights * divergences).mean(), divergences.detach().clamp(min=0), values.mean())

    @torch.no_grad()
    def _distributions(self, batch: TransitionBatch) -> Tensor:
        """Return the target distributions on the support, float32[batch, atoms]."""
        target = cast(DistributionalQNetwork, self.target)
        after = target(batch.next_obs).softmax(dim=-1)
        values = self._action_values(self.online, batch.next_obs) if self._config.double else after @ target.support
        probabilities = _of_actions(after, values.argmax(dim=1))
        returns = batch.reward.unsqueeze(1) + batch.discount.unsqueeze(1) * target.support
        return projected(probabilities, returns, target.support)


def _of_actions(by_action: Tensor, actions: Tensor) -> Tensor:
    """Return the rows float32[batch, atoms] of ``actions`` int64[batch] in float32[batch, actions, atoms]."""
    return by_action[torch.arange(len(actions), device=actions.device), actions]
