"""Figures of gradient steps: summed up where they arise, and fetched only when somebody looks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

DECAY = 0.99
"""What a gradient step leaves of the smoothed figures before it."""


@dataclass(frozen=True)
class Figures:
    """Smoothed figures of the gradient steps so far; not finite from the first one on that was not.

    Attributes:
        loss: weighted loss.
        grad_norm: length of the gradient before clipping.
        mean_value: mean value of the actions in batches.
        steps: gradient steps that went in.
        finite_steps: how many of them came before the first whose figures are not all finite.
    """

    loss: float
    grad_norm: float
    mean_value: float
    steps: int
    finite_steps: int


class FiguresMeter:
    """Exponential means that are right from the first value on. Adding never waits for the device."""

    def __init__(self, device: torch.device) -> None:
        """Start without values.

        Args:
            device: where the figures arise.
        """
        self._steps = 0
        self._smoothed = torch.zeros(3, device=device)
        self._is_finite = torch.ones((), dtype=torch.bool, device=device)
        self._finite_steps = torch.zeros((), dtype=torch.int64, device=device)

    def add(self, loss: Tensor, grad_norm: Tensor, mean_value: Tensor) -> None:
        """Take in the figures of a gradient step, each float32[]."""
        latest = torch.stack((loss, grad_norm, mean_value))
        self._steps += 1
        self._smoothed.lerp_(latest, 1 - DECAY)
        self._is_finite.logical_and_(latest.isfinite().all())
        self._finite_steps.add_(self._is_finite)

    def fetch(self) -> Figures | None:
        """Wait for the device, once; None before the first step."""
        if not self._steps:
            return None
        together = torch.cat((self._smoothed.double(), self._finite_steps.double().unsqueeze(0)))
        loss, grad_norm, mean_value, finite_steps = together.tolist()
        weight = 1 - DECAY**self._steps
        return Figures(loss / weight, grad_norm / weight, mean_value / weight, self._steps, int(finite_steps))
