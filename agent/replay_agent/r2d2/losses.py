"""Targets of R2D2 as pure functions of tensors; see Kapturowski et al. (2019), section 2.3."""

from __future__ import annotations

import torch
from torch import Tensor


def rescaled(values: Tensor, epsilon: float) -> Tensor:
    """Compress values, so that one learning rate suits small and large returns.

    This computes ``h(x) = sign(x) * (sqrt(abs(x) + 1) - 1) + epsilon * x``, rewritten to stay precise near 0.
    """
    return values / ((values.abs() + 1).sqrt() + 1) + epsilon * values


def unscaled(values: Tensor, epsilon: float) -> Tensor:
    """Invert `rescaled` (Pohlen et al., 2018, arXiv:1805.11593, proposition A.2), rewritten to stay precise near 0."""
    size = values.abs()
    root = (1 + 4 * epsilon * (size + 1 + epsilon)).sqrt()
    return values.sign() * ((2 * (size + 1 + epsilon) / (root + 1)) ** 2 - 1)


def n_step_targets(values: Tensor, rewards: Tensor, discounts: Tensor, mask: Tensor, n_step: int) -> Tensor:
    """Compute n-step targets. Near the end of an episode, they use as many steps as are left.

    Args:
        values: float32[batch, positions], values of the observations. The position after an episode's last step has the
            final observation.
        rewards: float32[batch, positions], reward of each step.
        discounts: float32[batch, positions], factor for the value of the observation after each step; 0 if that is a
            terminal state.
        mask: bool[batch, positions]: which positions hold a step.
        n_step: n, below the number of positions.

    Returns:
        The targets, float32[batch, positions - n]; meaningless at positions without a step.
    """
    targets = values
    for length in range(values.shape[1] - 1, values.shape[1] - 1 - n_step, -1):
        of_steps = rewards[:, :length] + discounts[:, :length] * targets[:, 1:]
        targets = torch.where(mask[:, :length], of_steps, values[:, :length])
    return targets
