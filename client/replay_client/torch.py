"""Batches as torch tensors on a device. The only module here that imports torch.

    from replay_client.torch import to_torch

    batch = next(sampler)
    tensors = to_torch(batch, device)
    loss = (tensors.weights * huber(network(tensors["obs"]), ...)).mean()
    sampler.update_priorities(batch.keys, td_errors)

On the CPU tensors share the memory of the batch's arrays: nothing is copied. For a CUDA device the columns go through
pinned memory, so that the copy to the device runs beside whatever the device computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from replay_client.batch import Batch


@dataclass(frozen=True, eq=False)
class TensorBatch:
    """A batch on a device."""

    batch: Batch
    """The batch these were made of: its keys and what else stays on this side."""
    columns: Mapping[str, torch.Tensor]
    """By column: ``dtype[batch, *shape]``."""
    weights: torch.Tensor
    """float32[batch]."""

    def __getitem__(self, name: str) -> torch.Tensor:
        """A column.

        Raises:
            KeyError: there is no such column.
        """
        return self.columns[name]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.batch)


def to_torch(batch: Batch, device: torch.device | str = "cpu") -> TensorBatch:
    """Put the columns and the weights of a batch on a device.

    Args:
        batch: as drawn.
        device: where to.

    Returns:
        Tensors; on the CPU they are views of the batch's arrays, elsewhere they may still be on their way, in the order
        of the device's current stream.
    """
    target = torch.device(device)
    return TensorBatch(
        batch=batch,
        columns={name: _on_device(array, target) for name, array in batch.columns.items()},
        weights=_on_device(batch.weights, target),
    )


def _on_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(np.require(array, requirements="W"))
    if device.type == "cpu":
        return tensor
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
