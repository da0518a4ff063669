"""The trainer's link to its replay table: insert rows, sample batches, update priorities.

`PipelinedReplay` is fast: it sends rows in the background, prefetches batches to the device and never waits for
priority updates. `LockstepReplay` waits for each call, so that equal seeds give equal runs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import torch
from replay_client import (
    DrawMode,
    ReplayError,
    Table,
    TableNotFoundError,
    TableReplacedError,
    WeightNorm,
    Writer,
)
from replay_client.torch import TensorBatch, TensorSampler, to_torch
from torch import Tensor

from replay_agent.dqn.n_step import Transition
from replay_agent.replay.rows import append_transition, stack_transitions

TABLE_LOST = (TableNotFoundError, TableReplacedError)
"""Raised by the client if the run's table was dropped or replaced."""
CLOSE_TIMEOUT_S = 5.0
FLUSH_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class DrawSettings:
    """How batches are drawn.

    Attributes:
        batch_size: rows in a batch.
        weight_norm: ``batch`` or ``table``: divide weights by the largest one in the batch or in the table.
        draw_mode: ``stratified`` or ``independent``.
        prefetch: batches in flight.
        timeout_s: seconds to wait for rows, and for an unreachable server.
        device: device of the batches.
    """

    batch_size: int
    weight_norm: WeightNorm
    draw_mode: DrawMode
    prefetch: int
    timeout_s: float
    device: torch.device


class ReplayLink(Protocol):
    """Access to the run's table. Every method may raise one of `TABLE_LOST`, or another `ReplayError`."""

    @property
    def table(self) -> Table:
        """The table."""
        ...

    def append(self, transition: Transition) -> None:
        """Insert a row, possibly in the background."""
        ...

    def end_episode(self) -> None:
        """Mark the end of an episode."""
        ...

    def next_batch(self, beta: float) -> TensorBatch:
        """Draw a batch; ``beta`` applies to requests from now on."""
        ...

    def write_back(self, batch: TensorBatch, priorities: Tensor) -> None:
        """Update the priorities float32[batch] of a batch; the device may still be computing them."""
        ...

    def flush(self) -> None:
        """Wait a few seconds for all appended rows to arrive; give up silently."""
        ...

    def close(self) -> None:
        """Send remaining rows and updates, if the table still exists."""
        ...


class PipelinedReplay:
    """Sends rows in the background and prefetches batches."""

    def __init__(self, table: Table, draws: DrawSettings) -> None:
        """Link to a table; sends nothing yet."""
        self._table = table
        self._draws = draws
        self._writer: Writer | None = None
        self._sampler: TensorSampler | None = None

    @property
    def table(self) -> Table:
        """The table."""
        return self._table

    def append(self, transition: Transition) -> None:
        """Pass a row to the writer."""
        if self._writer is None:
            self._writer = self._table.writer(reconnect_timeout_s=self._draws.timeout_s)
        append_transition(self._writer, transition)

    def end_episode(self) -> None:
        """Send rows that the writer has buffered."""
        if self._writer is not None:
            self._writer.end_episode()

    def next_batch(self, beta: float) -> TensorBatch:
        """Request another batch and return the oldest one in flight."""
        if self._sampler is None:
            self._sampler = self._open_sampler(beta)
        self._sampler.beta = beta
        return next(self._sampler)

    def write_back(self, batch: TensorBatch, priorities: Tensor) -> None:
        """Send the update with the next request for a batch."""
        if self._sampler is not None:
            self._sampler.update_priorities(batch, priorities)

    def flush(self) -> None:
        """Wait for the writer."""
        if self._writer is not None:
            with suppress(ReplayError):
                self._writer.flush(timeout_s=FLUSH_TIMEOUT_S)

    def close(self) -> None:
        """Flush and close both streams."""
        for stream in (self._writer, self._sampler):
            if stream is not None:
                with suppress(ReplayError):
                    stream.close(timeout_s=CLOSE_TIMEOUT_S)
        self._writer = self._sampler = None

    def _open_sampler(self, beta: float) -> TensorSampler:
        draws = self._draws
        return self._table.sampler(
            draws.batch_size,
            beta=beta,
            weight_norm=draws.weight_norm,
            draw_mode=draws.draw_mode,
            prefetch=draws.prefetch,
            timeout_s=draws.timeout_s,
            reconnect_timeout_s=draws.timeout_s,
            device=draws.device,
        )


class LockstepReplay:
    """Makes a separate, blocking call for every row, batch and update."""

    def __init__(self, table: Table, draws: DrawSettings) -> None:
        """Link to a table; sends nothing yet."""
        self._table = table
        self._draws = draws

    @property
    def table(self) -> Table:
        """The table."""
        return self._table

    def append(self, transition: Transition) -> None:
        """Insert the row."""
        self._table.insert(stack_transitions([transition]))

    def end_episode(self) -> None:
        """Do nothing: rows are never buffered."""

    def next_batch(self, beta: float) -> TensorBatch:
        """Draw a batch."""
        draws = self._draws
        batch = self._table.sample(
            draws.batch_size,
            beta=beta,
            weight_norm=draws.weight_norm,
            draw_mode=draws.draw_mode,
            timeout_s=draws.timeout_s,
        )
        return to_torch(batch, draws.device)

    def write_back(self, batch: TensorBatch, priorities: Tensor) -> None:
        """Set the priorities."""
        self._table.update_priorities(batch, priorities)

    def flush(self) -> None:
        """Do nothing: rows are never buffered."""

    def close(self) -> None:
        """Do nothing: rows are never buffered."""


LinkFactory = Callable[[Table, DrawSettings], ReplayLink]


def link_factory(*, lockstep: bool) -> LinkFactory:
    """The kind of link to use."""
    return LockstepReplay if lockstep else PipelinedReplay
