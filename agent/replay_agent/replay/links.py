"""The trainer's end of its replay table: rows in, batches out, priorities back, and a new table if the old one goes.

Two links do the same. `PipelinedReplay` sends rows in the background, has batches on the device ahead of need and never
waits for priorities; it is the fast one. `LockstepReplay` waits for everything, so that one seed gives one run.
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
"""What the client raises when the table is not the one that was made."""
CLOSE_TIMEOUT_S = 5.0
FLUSH_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class DrawSettings:
    """How batches are drawn.

    Attributes:
        batch_size: rows in a batch.
        weight_norm: largest weight, of the batch or of the table, that weights are divided by.
        draw_mode: ``stratified`` or ``independent``.
        prefetch: batches on their way at once.
        timeout_s: seconds to wait for rows, and for a server that went away.
        device: where batches are to be.
    """

    batch_size: int
    weight_norm: WeightNorm
    draw_mode: DrawMode
    prefetch: int
    timeout_s: float
    device: torch.device


class ReplayLink(Protocol):
    """What the trainer does with its table. Every method may raise one of `TABLE_LOST`, or another `ReplayError`."""

    @property
    def table(self) -> Table:
        """The table."""
        ...

    def append(self, transition: Transition) -> None:
        """Insert one row, now or soon."""
        ...

    def end_episode(self) -> None:
        """Rows to come belong to the next episode."""
        ...

    def next_batch(self, beta: float) -> TensorBatch:
        """Draw a batch; ``beta`` is for what is asked from now on."""
        ...

    def write_back(self, batch: TensorBatch, priorities: Tensor) -> None:
        """Set priorities float32[batch] of the rows of a batch; they may still be computed."""
        ...

    def flush(self) -> None:
        """Wait for some seconds until the table has every row appended so far; give up quietly."""
        ...

    def close(self) -> None:
        """Send what is left, as far as the table is still there."""
        ...


class PipelinedReplay:
    """Rows go out in the background, batches are asked for ahead of need."""

    def __init__(self, table: Table, draws: DrawSettings) -> None:
        """Nothing is sent yet."""
        self._table = table
        self._draws = draws
        self._writer: Writer | None = None
        self._sampler: TensorSampler | None = None

    @property
    def table(self) -> Table:
        """The table."""
        return self._table

    def append(self, transition: Transition) -> None:
        """Hand a row to the writer."""
        if self._writer is None:
            self._writer = self._table.writer(reconnect_timeout_s=self._draws.timeout_s)
        append_transition(self._writer, transition)

    def end_episode(self) -> None:
        """Send what the writer holds."""
        if self._writer is not None:
            self._writer.end_episode()

    def next_batch(self, beta: float) -> TensorBatch:
        """Ask for one more batch and return the oldest on its way."""
        if self._sampler is None:
            self._sampler = self._open_sampler(beta)
        self._sampler.beta = beta
        return next(self._sampler)

    def write_back(self, batch: TensorBatch, priorities: Tensor) -> None:
        """The update rides on the next request for a batch."""
        if self._sampler is not None:
            self._sampler.update_priorities(batch, priorities)

    def flush(self) -> None:
        """Wait for the writer."""
        if self._writer is not None:
            with suppress(ReplayError):
                self._writer.flush(timeout_s=FLUSH_TIMEOUT_S)

    def close(self) -> None:
        """Flush and end both streams."""
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
    """Every row, batch and update is a call of its own, in the order of the program."""

    def __init__(self, table: Table, draws: DrawSettings) -> None:
        """Nothing is sent yet."""
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
        """Nothing is held back."""

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
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing is held back."""


LinkFactory = Callable[[Table, DrawSettings], ReplayLink]


def link_factory(*, lockstep: bool) -> LinkFactory:
    """The kind of link that the settings ask for."""
    return LockstepReplay if lockstep else PipelinedReplay
