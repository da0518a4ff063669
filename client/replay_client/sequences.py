"""Computes priorities of sequences, for recurrent learners.

    td = ...                                        # TD errors [batch, positions]
    sampler.update_priorities(batch, sequence_priorities(td, batch["mask"]))

The result of `sequence_priorities` has the new priority of each sequence.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from replay_client.errors import InvalidArgumentError

A = TypeVar("A")


def sequence_priorities(td: A, mask: Any, eta: float = 0.9) -> A:
    """Return the priority of each sequence: ``eta * max + (1 - eta) * mean`` of the absolute TD errors of its steps.

    See Kapturowski et al. 2019, section 2.3. Exclude the burn-in: pass only positions from ``burn_in`` on.

    Args:
        td: TD errors, float[b, positions]; an array, or a torch tensor on any device.
        mask: bool[b, positions], of the same library: which positions count. If none counts, the priority is 0.
        eta: weight of the largest error, 0 to 1.

    Returns:
        The priorities, float[b], of the same library and on the same device as ``td``.

    Raises:
        InvalidArgumentError: for shapes that differ, or an eta out of range.
    """
    if not 0.0 <= eta <= 1.0:
        raise InvalidArgumentError.of_field("eta", "0 to 1", repr(eta))
    errors: Any = td
    if len(np.shape(errors)) != 2 or tuple(np.shape(errors)) != tuple(np.shape(mask)):
        raise InvalidArgumentError.of_field(
            "mask", f"the shape [b, places] of td, {list(np.shape(errors))}", f"{list(np.shape(mask))}"
        )
    if not hasattr(errors, "detach"):
        errors = np.asarray(errors)
        counted = np.where(mask, np.abs(errors), 0)
        largest = counted.max(axis=1)
        steps = np.maximum(np.sum(mask, axis=1, dtype=counted.dtype), 1)
    else:
        counted = errors.detach().abs().masked_fill(~mask.bool(), 0)
        largest = counted.amax(dim=1)
        steps = mask.sum(dim=1).clamp(min=1).to(counted.dtype)
    made: A = eta * largest + (1.0 - eta) * counted.sum(1) / steps
    return made
