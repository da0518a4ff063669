"""Detects that training diverged, before a network is saved or selected."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor

from replay_agent.dqn.learner import Figures, Learner

MAX_RETURN: Final = 1e30
"""Largest magnitude of a return. TensorBoard stores float32, in which a sum of 10^8 such returns is still finite."""


class DivergedError(RuntimeError):
    """Training diverged.

    The message names the return that is out of range, or the quantities that are not finite, and the gradient step
    after which that was noticed.
    """


def require_finite(learner: Learner[Any, Any]) -> None:
    """Raise `DivergedError` unless all numbers in the learner are finite. This waits for the device.

    The check covers all parts of the learner that a checkpoint contains. It also covers the action values of the last
    batch, because even finite parameters may be so large that action values overflow.
    """
    parts: dict[str, Iterable[Tensor]] = {
        "the online network": learner.online.parameters(),
        "the target network": learner.target.parameters(),
        "the optimizer's state": (
            value for values in learner.optimizer.state.values() for value in values.values() if torch.is_tensor(value)
        ),
        "action values": learner.latest_values(),
    }
    wrong = [name for name, tensors in parts.items() if not all_finite(tensors)]
    if wrong:
        raise _error(wrong, learner)


def require_finite_figures(learner: Learner[Any, Any], figures: Figures | None) -> None:
    """Raise `DivergedError` unless the figures of all gradient steps were finite."""
    if figures is not None:
        values = {"loss": figures.loss, "gradient": figures.grad_norm, "mean action value": figures.mean_value}
        wrong = [f"the {name}" for name, value in values.items() if not math.isfinite(value)]
        if wrong:
            raise _error(wrong, learner)


def require_return(value: float, of: str) -> None:
    """Raise `DivergedError` unless a return is finite, and its magnitude at most `MAX_RETURN`."""
    if not math.fabs(value) <= MAX_RETURN:
        raise DivergedError(f"expected a return from {-MAX_RETURN:g} to {MAX_RETURN:g} of {of}, got {value}")


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether all elements are finite. This waits for the device."""
    found = [tensor.detach().isfinite().all() for tensor in tensors]
    return not found or bool(torch.stack([finite.to(found[0].device) for finite in found]).all())


def _error(wrong: list[str], learner: Learner[Any, Any]) -> DivergedError:
    return DivergedError(f"training diverged: after gradient step {learner.updates}, not finite: {', '.join(wrong)}")
