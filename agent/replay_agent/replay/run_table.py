"""The table of a run, and the trainer's access to it: it inserts rows, samples batches and updates priorities."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import torch
from replay_client import (
    ReplayClient,
    ReplayError,
    Sequences,
    Steps,
    Table,
    TableExistsError,
    TableNotFoundError,
    TableReplacedError,
    Writer,
)
from replay_client.torch import TensorBatch, TensorSampler, to_torch
from torch import Tensor

from replay_agent.acting.actor import Step
from replay_agent.acting.environments import EnvironmentInfo
from replay_agent.algorithms import algorithm_of
from replay_agent.replay.pacing import Pacer, TableCount
from replay_agent.replay.rows import Recorder, make_recorders
from replay_agent.settings.train_settings import TrainSettings

log = logging.getLogger(__name__)

TABLE_LOST: Final = (TableNotFoundError, TableReplacedError)
"""Raised by the client if the run's table was dropped or replaced."""
CLOSE_TIMEOUT_S: Final = 5.0
FLUSH_TIMEOUT_S: Final = 5.0
# Pause before a retry if a new table disappears before its first use.
RETRY_S = 0.2


def check_table(settings: TrainSettings, env: EnvironmentInfo) -> None:
    """Check that the table would have steps to draw, even if all actors of this machine share it.

    Raises:
        ValueError: the capacity is too small.
        InvalidArgumentError: a window would be too long.
    """
    columns, item = algorithm_of(settings).layout(settings, env)
    window = Steps.of(columns, item).window
    environments = max(1, settings.actors + settings.acts) * settings.envs_per_actor
    # For each environment, windows of the newest steps may be incomplete, and those of the oldest steps may be broken.
    # In between, a closing row cannot be drawn, and only one step per period is an anchor.
    expected = environments * (window.rows + window.period)
    if settings.capacity < expected:
        of_sequences = f"burn_in {settings.burn_in}, sequence_length {settings.sequence_length}, "
        raise ValueError(
            f"expected capacity of at least {expected} with n_step {settings.n_step}, "
            f"{of_sequences if isinstance(item, Sequences) else ''}stacks of {env.stack} frames and "
            f"{environments} environments; got capacity {settings.capacity}"
        )


class RunTable:
    """The run's table, which is created when it is first needed, and again if it is dropped.

    Rows are sent in the background, batches are prefetched to the device, and nothing waits for priority updates. In
    lockstep, each call waits, so that equal seeds give equal runs. Every method may raise one of `TABLE_LOST`, or
    another `ReplayError`.
    """

    def __init__(
        self,
        client: ReplayClient,
        env: EnvironmentInfo,
        settings: TrainSettings,
        pacer: Pacer,
        *,
        name: str,
        seed: int,
        timeout_s: float,
        device: torch.device,
    ) -> None:
        """Store the arguments; `open` creates the table, and tells ``pacer`` its row counts.

        ``timeout_s`` limits the wait for rows, and for an unreachable server. ``device`` is that of the batches.
        """
        self.name = name
        self._client = client
        self._env = env
        self._settings = settings
        self._pacer = pacer
        self._seed = seed
        self._timeout_s = timeout_s
        self._device = device
        self._table: Table | None = None
        self._writer: Writer | None = None
        self._recorders: list[Recorder] = []
        self._sampler: TensorSampler | None = None

    def open(self) -> Table:
        """Return the table; if it is not open, create or open it first.

        Raises:
            TableExistsError: a table of this name has another config; the message says what to do.
        """
        if self._table is None:
            table = self._create_or_open()
            description = table.describe()
            if description.size:
                log.info("table %s has %d rows already", table.name, description.size)
            self._pacer.attach(description.inserted, description.size)
            self._pacer.can_draw = False
            self._table = table
        return self._table

    @property
    def uid(self) -> bytes:
        """Distinguishes the table from earlier ones of its name; empty: there is none at present."""
        table = self._table  # another thread may close it
        return b"" if table is None else table.uid

    def to_json(self) -> dict[str, Any]:
        """Return the table's identity and row counts, as JSON values."""
        return {"uid": self.uid.hex(), **self._pacer.table_count._asdict()}

    def find_again(self, saved: Mapping[str, Any], *, is_shared: bool) -> bool:
        """Resume with the table of an earlier start, and return whether it still exists.

        Args:
            saved: the result of `to_json` in the earlier start.
            is_shared: whether others may have inserted rows since. If so, these rows do not count as steps of the run.
        """
        table = self.open()
        if saved["uid"] != table.uid.hex():
            return False
        if not is_shared:
            stats = table.stats()
            counted = TableCount(saved["inserted"], saved["size"])
            closing_share = stats.steps.closing / stats.size if stats.steps and stats.size else 0.0
            self._pacer.catch_up(counted, stats.inserted, stats.size, closing_share)
        return True

    def record(self, steps: Sequence[Step]) -> None:
        """Insert a step of each environment."""
        if self._writer is None:
            self._writer = self.open().writer(streams=len(steps), reconnect_timeout_s=self._timeout_s)
            self._recorders = make_recorders(self._writer, self._settings.n_step, self._settings.gamma)
        for recorder, step in zip(self._recorders, steps, strict=True):
            recorder.record(step)
        if self._settings.lockstep:
            self._writer.flush(timeout_s=self._timeout_s)

    def can_draw(self) -> bool:
        """Whether any row can be drawn.

        A step can be drawn only after the steps that follow it have arrived. Therefore, this method first waits until
        all recorded steps have arrived, and then asks the table.
        """
        self.flush()
        steps = self.open().stats().steps
        return steps is not None and steps.drawable > 0

    def next_batch(self, beta: float) -> TensorBatch:
        """Draw a batch. Unless in lockstep, it was requested earlier, and another one is requested with this ``beta``.

        The ``beta`` of a batch is that of its request.
        """
        settings = self._settings
        options: dict[str, Any] = {
            "beta": beta,
            "weight_norm": settings.weight_norm,
            "draw_mode": settings.draw_mode,
            "timeout_s": self._timeout_s,
        }
        if settings.lockstep:
            return to_torch(self.open().sample(settings.batch_size, **options), self._device)
        if self._sampler is None:
            options |= {"prefetch": settings.prefetch, "reconnect_timeout_s": self._timeout_s, "device": self._device}
            self._sampler = self.open().sampler(settings.batch_size, **options)
        self._sampler.beta = beta
        return next(self._sampler)

    def write_back(self, batch: TensorBatch, priorities: Tensor) -> None:
        """Update the priorities float32[batch] of a batch; the device may still be computing them."""
        (self._sampler or self.open()).update_priorities(batch, priorities)

    def flush(self) -> None:
        """Wait until all recorded rows are acknowledged, but at most `FLUSH_TIMEOUT_S`. Errors are ignored."""
        if self._writer is not None:
            with suppress(ReplayError):
                self._writer.flush(timeout_s=FLUSH_TIMEOUT_S)

    def lose(self, error: Exception) -> None:
        """Record that the table no longer exists, so that the next `open` creates a new one."""
        log.warning("the table is gone, creating a new one: %s", error)
        if self._table is None:
            time.sleep(RETRY_S)
        self.close()

    def checkpoint(self, keep: int, timeout_s: float) -> str | None:
        """Have the server write a checkpoint of the table, and return its name; None after a failure, which is logged.

        The series is named after the table, and has the newest ``keep`` checkpoints.
        """
        try:
            return self._client.checkpoint([self.name], series=self.name, keep=keep, timeout_s=timeout_s).name
        except ReplayError as error:
            log.warning("the server wrote no checkpoint of the table: %s", error)
            return None

    def drop(self) -> None:
        """Remove the table from the server."""
        table = self._table
        if table is not None:
            self.close()
            table.drop()

    def close(self) -> None:
        """Send remaining rows and updates, if the table still exists, and close the access to it."""
        for stream in (self._writer, self._sampler):
            if stream is not None:
                with suppress(ReplayError):
                    stream.close(timeout_s=CLOSE_TIMEOUT_S)
        self._table = self._writer = self._sampler = None

    def _create_or_open(self) -> Table:
        settings = self._settings
        columns, item = algorithm_of(settings).layout(settings, self._env)
        parameters = {} if settings.backend == "uniform" else {"alpha": settings.alpha}
        try:
            return self._client.create_table(
                self.name,
                columns=columns,
                capacity=settings.capacity,
                backend=settings.backend,
                seed=self._seed,
                if_exists="open",
                steps=item,
                **parameters,
            )
        except TableExistsError as error:
            error.add_note(
                "Resume with the settings that it was made with, choose another --table, or remove this one: "
                f"replay drop {self.name}"
            )
            raise
