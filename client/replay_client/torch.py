"""Converts batches to torch tensors.

    from replay_client.torch import to_torch

    batch = next(sampler)
    tensors = to_torch(batch, device)
    loss = (tensors.weights * huber(network(tensors["obs"]), ...)).mean()
    sampler.update_priorities(batch, td_errors)

On the CPU, tensors share the memory of the batch's arrays. For a CUDA device, columns are copied through pinned memory,
so the copy overlaps with computation on the device.

    with table.sampler(256, beta=0.4, device="cuda") as sampler:
        for tensors in sampler:                                   # already on the device
            sampler.update_priorities(tensors, td_errors)         # a tensor or an array

A sampler with a ``device`` makes these copies in a background thread, one batch ahead of the learner. A `TensorBatch`
is a mapping of its columns, so ``TensorDict(dict(tensors), batch_size=...).unflatten_keys("/")`` works.

    loader = DataLoader(TableDataset(table, 256, beta=0.4), batch_size=None, num_workers=2)
    for tensors in loader:
        table.update_priorities(tensors, td_errors)

Use a `TableDataset` with frameworks that require a dataset. In your own training loop, a sampler is faster.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from replay_client._learning.tensors import Device, MixedTensorBatch, TensorBatch, to_torch
from replay_client.draws import DEFAULT_BETA, DrawMode, Prefetch, WeightNorm, checked_beta
from replay_client.sync.table import Table
from replay_client.sync.tensors import MixedTensorSampler, TensorSampler

__all__ = [
    "Device",
    "MixedTensorBatch",
    "MixedTensorSampler",
    "TableDataset",
    "TensorBatch",
    "TensorSampler",
    "to_torch",
]


class TableDataset(IterableDataset[TensorBatch]):
    """An endless dataset of batches, drawn from a table by priority; for a `DataLoader` with ``batch_size=None``.

    Each worker of the loader has its own connection. The server chooses rows at random, so workers get different
    batches. Workers may be spawned. They may also be forked, unless this process has open writers or samplers: gRPC may
    crash in processes that are forked while it is busy.
    """

    def __init__(
        self,
        table: Table,
        batch_size: int,
        *,
        beta: float = DEFAULT_BETA,
        weight_norm: WeightNorm = "batch",
        draw_mode: DrawMode = "stratified",
        prefetch: Prefetch = "auto",
        timeout_s: float | None = math.inf,
        reconnect_timeout_s: float | None = 60.0,
        columns: Collection[str] | None = None,
        row_info: bool = False,
        device: Device | None = None,
    ) -> None:
        """Use a table; arguments are as for `Table.sampler`, and are checked when iteration begins, except `beta`.

        Each worker has ``prefetch`` batches in flight. Without a device, batches are on the CPU. Workers always return
        batches on the CPU; use `to_torch` to copy them to a device.
        """
        super().__init__()
        self._table = table
        self._batch_size = batch_size
        self._options: dict[str, Any] = {
            "weight_norm": weight_norm,
            "draw_mode": draw_mode,
            "prefetch": prefetch,
            "timeout_s": timeout_s,
            "reconnect_timeout_s": reconnect_timeout_s,
            "columns": columns,
            "row_info": row_info,
        }
        self._device = device
        # Workers see changes, because they share the memory.
        self._beta = torch.tensor(checked_beta(beta), dtype=torch.float64)
        self._beta.share_memory_()  # type: ignore[no-untyped-call]

    @property
    def beta(self) -> float:
        """Exponent of the weights of batches requested from now on, also by workers.

        `TensorBatch.beta` is the exponent of a batch that was drawn.
        """
        return float(self._beta)

    @beta.setter
    def beta(self, beta: float) -> None:
        self._beta.fill_(checked_beta(beta))

    def __iter__(self) -> Iterator[TensorBatch]:
        """Draw batches, over a stream that ends with the iterator."""
        if get_worker_info() is None:
            table, device = self._table, self._device or "cpu"
        else:  # a forked worker needs another connection, and CUDA another process
            table, device = copy.deepcopy(self._table), "cpu"
        with table.sampler(self._batch_size, beta=self.beta, device=device, **self._options) as sampler:
            while True:
                if sampler.beta != self.beta:
                    sampler.beta = self.beta
                yield next(sampler)
