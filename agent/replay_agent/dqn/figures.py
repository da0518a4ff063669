"""Figures of gradient steps, accumulated on the device and fetched only for display."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

DECAY = 0.99
"""Decay of the exponential means per gradient step."""
FIGURES = ("loss", "grad_norm", "mean_value")
FOLDED_STEPS = 256
"""Number of gradient steps after which pending figures are added to the means."""


@dataclass(frozen=True)
class Figures:
    """Smoothed figures of the gradient steps so far. A non-finite figure stays non-finite.

    Attributes:
        loss: weighted loss.
        grad_norm: norm of the gradient before clipping.
        mean_value: mean value of the actions in batches.
        steps: number of gradient steps.
        finite_steps: number of steps before the first non-finite figure.
    """

    loss: float
    grad_norm: float
    mean_value: float
    steps: int
    finite_steps: int


class FiguresMeter:
    """Computes bias-corrected exponential means of figures. Adding figures never waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps = 0
        self._waiting: list[Tensor] = []
        self._smoothed = torch.zeros(len(FIGURES), device=device)
        self._finite_steps = torch.zeros((), dtype=torch.int64, device=device)
        self._is_finite = torch.ones((), dtype=torch.int64, device=device)

    def add(self, loss: Tensor, grad_norm: Tensor, mean_value: Tensor) -> None:
        """Add the figures of a gradient step, each float32[]."""
        # Adding many steps to the means in one operation is nearly free per step.
        self._waiting += (loss, grad_norm, mean_value)
        self._steps += 1
        if len(self._waiting) >= FOLDED_STEPS * len(FIGURES):
            self._fold()

    def fetch(self) -> Figures | None:
        """Fetch the figures, waiting for the device once; None before the first step."""
        if not self._steps:
            return None
        self._fold()
        together = torch.cat((self._smoothed.double(), self._finite_steps.double().unsqueeze(0)))
        loss, grad_norm, mean_value, finite_steps = together.tolist()
        weight = 1 - DECAY**self._steps
        return Figures(loss / weight, grad_norm / weight, mean_value / weight, self._steps, int(finite_steps))

    def _fold(self) -> None:
        """Add pending figures to the means, on the device."""
        if not self._waiting:
            return
        values = torch.stack(self._waiting).view(-1, len(FIGURES))
        self._waiting.clear()
        ages = torch.arange(len(values) - 1, -1, -1, device=self._device)
        weights = (1 - DECAY) * DECAY**ages
        self._smoothed = self._smoothed * DECAY ** len(values) + (weights.unsqueeze(1) * values).sum(0)
        finite = values.isfinite().all(dim=1).long().cumprod(0)
        self._finite_steps += self._is_finite * finite.sum()
        self._is_finite *= finite[-1]
