"""The trainer's access to its replay table: it inserts rows, samples batches and updates priorities.

`ReplayAccess` is fast: it sends rows in the background, prefetches batches to the device and never waits for priority
updates. `LockstepAccess` waits for each call, so that equal seeds give equal runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import torch
from replay_client import ReplayError, Table, TableNotFoundError, TableReplacedError, Writer
from replay_client.torch import TensorBatch, TensorSampler, to_torch
from torch import Tensor

from replay_agent.acting.actor import Step
from replay_agent.replay.rows import Recorder, make_recorders
from replay_agent.settings.train_settings import TrainSettings

TABLE_LOST: Final = (TableNotFoundError, TableReplacedError)
"""Raised by the client if the run's table was dropped or replaced."""
CLOSE_TIMEOUT_S: Final = 5.0
FLUSH_TIMEOUT_S: Final = 5.0


class ReplayAccess:
    """Access to the run's table. Every method may raise one of `TABLE_LOST`, or another `ReplayError`."""

    def __init__(self, table: Table, settings: TrainSettings, timeout_s: float, device: torch.device) -> None:
        """Prepare access to a table; send nothing yet. See `RunTable` for the arguments."""
        self.table = table
        self._settings = settings
        self._timeout_s = timeout_s
        self._device = device
        self._writer: Writer | None = None
        self._recorders: list[Recorder] = []
        self._sampler: TensorSampler | None = None

    def record(self, steps: Sequence[Step]) -> None:
        """Insert a step of each environment, in the background."""
        if self._writer is None:
            self._writer = self.table.writer(streams=len(steps), reconnect_timeout_s=self._timeout_s)
            self._recorders = make_recorders(self._writer, self._settings.n_step, self._settings.gamma)
        for recorder, step in zip(self._recorders, steps, strict=True):
            recorder.record(step)

    def can_draw(self) -> bool:
        """Whether any row can be drawn.

        A step can be drawn only after the steps that follow it have arrived. Therefore, this method first waits until
        all recorded steps have arrived, and then asks the table.
        """
        self.flush()
        steps = self.table.stats().steps
        return steps is not None and steps.drawable > 0

    def next_batch(self, beta: float) -> TensorBatch:
        """Request another batch with this ``beta``, and return the oldest batch in flight."""
        if self._sampler is None:
            self._sampler = self.table.sampler(
                self._settings.batch_size,
                beta=beta,
                weight_norm=self._settings.weight_norm,
                draw_mode=self._settings.draw_mode,
                prefetch=self._settings.prefetch,
                timeout_s=self._timeout_s,
                reconnect_timeout_s=self._timeout_s,
                device=self._device,
            )
        self._sampler.beta = beta
        return next(self._sampler)

    def write_back(self, batch: TensorBatch, priorities: Tensor) -> None:
        """Update the priorities float32[batch] of a batch; the device may still be computing them."""
        if self._sampler is not None:
            self._sampler.update_priorities(batch, priorities)

    def flush(self) -> None:
        """Wait until all appended rows are acknowledged, but at most `FLUSH_TIMEOUT_S`. Errors are ignored."""
        if self._writer is not None:
            with suppress(ReplayError):
                self._writer.flush(timeout_s=FLUSH_TIMEOUT_S)

    def close(self) -> None:
        """Send remaining rows and updates, if the table still exists, and close the streams."""
        for stream in (self._writer, self._sampler):
            if stream is not None:
                with suppress(ReplayError):
                    stream.close(timeout_s=CLOSE_TIMEOUT_S)
        self._writer = self._sampler = None


class LockstepAccess(ReplayAccess):
    """Waits for every row, batch and update."""

    def record(self, steps: Sequence[Step]) -> None:
        """Insert a step of each environment."""
        super().record(steps)
        if self._writer is not None:
            self._writer.flush(timeout_s=self._timeout_s)

    def next_batch(self, beta: float) -> TensorBatch:
        """Draw a batch."""
        batch = self.table.sample(
            self._settings.batch_size,
            beta=beta,
            weight_norm=self._settings.weight_norm,
            draw_mode=self._settings.draw_mode,
            timeout_s=self._timeout_s,
        )
        return to_torch(batch, self._device)

    def write_back(self, batch: TensorBatch, priorities: Tensor) -> None:
        """Set the priorities."""
        self.table.update_priorities(batch, priorities)
