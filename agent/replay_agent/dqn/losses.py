"""Targets and loss of (Double) DQN on prioritized batches, as pure functions of tensors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def values_of(q_values: Tensor, actions: Tensor) -> Tensor:
    """Return the values float32[...] of ``actions`` int64[...], given ``q_values`` float32[..., actions]."""
    return q_values.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def bootstrap_values(next_q_target: Tensor, next_q_online: Tensor | None) -> Tensor:
    """Estimate the values of the next observations.

    With ``next_q_online``, this is Double DQN: the online network selects actions, the target network evaluates them
    (van Hasselt et al., 2016, arXiv:1509.06461, equation 4). Without it, this is DQN: the largest value of the target
    network (Mnih et al., 2015).

    Args:
        next_q_target: float32[..., actions], values from the target network.
        next_q_online: float32[..., actions], values from the online network; None: plain DQN.

    Returns:
        float32[...].
    """
    chooser = next_q_target if next_q_online is None else next_q_online
    return values_of(next_q_target, chooser.argmax(dim=-1))


def weighted_huber_loss(td_errors: Tensor, weights: Tensor, delta: float) -> Tensor:
    """Average the Huber losses, each multiplied by its importance-sampling weight.

    The weights multiply the losses, not the TD errors. They scale the rows' gradients (Schaul et al., 2016,
    arXiv:1511.05952, algorithm 1, line 13), but must not affect which rows count as outliers.

    Args:
        td_errors: float32[...], target minus value.
        weights: float32[...].
        delta: TD error above which the loss is linear, in units of return.

    Returns:
        float32[], the loss.
    """
    losses = functional.huber_loss(td_errors, torch.zeros_like(td_errors), reduction="none", delta=delta)
    return (weights * losses).mean()
