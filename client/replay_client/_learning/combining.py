"""Combines the priorities of steps into those of sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from replay_proto.steps import Sequences, Steps

from replay_client._rows.positions import NO_ROW, Positions
from replay_client.errors import InvalidArgumentError
from replay_client.sequences import sequence_priorities


def combined(batch_or_keys: object, priorities: ArrayLike, steps: Steps | None) -> ArrayLike:
    """Return the priorities of items, float64[batch], for an array or a tensor of those of items, or of steps.

    Those of steps are of the first n positions from the anchor on, ``[batch, n]``, or of all positions, ``[batch,
    burn_in + length]``. Positions without a step, and the burn-in, do not count. Of sequences without padding, they are
    those of all positions, ``[total]``. Only a batch of sequences has steps; other shapes are refused.
    """
    positions = getattr(batch_or_keys, "_positions", None)
    given: Any = priorities if positions is None else _padded(positions, priorities)
    if getattr(given, "ndim", 1) != 2:
        return priorities
    if positions is None or steps is None or not isinstance(steps.item, Sequences):
        expected = "float64[n]; priorities of steps need a batch of sequences"
        raise InvalidArgumentError.of_field("priorities", expected, f"shape {list(given.shape)}")
    learned, item = positions.learned(), steps.item
    if given.shape[1] == item.burn_in + item.length:
        given = given[:, item.burn_in :]
    if len(given) != len(learned) or not 1 <= given.shape[1] <= item.length:
        expected = f"float64[{len(learned)}], or one for each of up to {item.length} positions from the anchor on"
        raise InvalidArgumentError.of_field("priorities", expected, f"shape {list(given.shape)}")
    learned = learned[:, : given.shape[1]]
    mask = given.new_tensor(learned) if hasattr(given, "new_tensor") else learned
    of_items: ArrayLike = sequence_priorities(given, mask, item.eta)
    return of_items


def _padded(positions: Positions, given: Any) -> Any:
    """Return priorities of all positions, ``[total]``, in a grid, ``[batch, positions]``; others as they are."""
    if not positions.is_ragged or getattr(given, "ndim", 1) != 1:
        return given
    has_row = positions.keys() != NO_ROW
    if len(given) == len(has_row) or len(given) != np.count_nonzero(has_row):
        return given
    is_tensor = hasattr(given, "new_zeros")
    grid = given.new_zeros(has_row.shape) if is_tensor else np.zeros(has_row.shape, np.asarray(given).dtype)
    grid[given.new_tensor(has_row).bool() if is_tensor else has_row] = given
    return grid
