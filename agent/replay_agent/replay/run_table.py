"""Creates the table of a run when it is first needed, and again if it is dropped."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import torch
from replay_client import ReplayClient, ReplayError, Sequences, Steps, Table, TableExistsError

from replay_agent.acting.environments import EnvironmentInfo
from replay_agent.algorithms import algorithm_of
from replay_agent.replay.access import LockstepAccess, ReplayAccess
from replay_agent.replay.pacing import Pacer, TableCount
from replay_agent.settings.train_settings import TrainSettings

log = logging.getLogger(__name__)

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
    """The run's table, and the trainer's access to it."""

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
        """Store the arguments; `access` creates the table, and tells ``pacer`` its row counts.

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
        self._access: ReplayAccess | None = None

    def access(self) -> ReplayAccess:
        """Return the access to the table; if there is none, create or open the table first.

        Raises:
            TableExistsError: a table of this name has another config; the message says what to do.
            ReplayError: one of `TABLE_LOST` or another failure.
        """
        if self._access is None:
            table = self._create_or_open()
            description = table.describe()
            if description.size:
                log.info("table %s has %d rows already", table.name, description.size)
            self._pacer.attach(description.inserted, description.size)
            self._pacer.can_draw = False
            kind = LockstepAccess if self._settings.lockstep else ReplayAccess
            self._access = kind(table, self._settings, self._timeout_s, self._device)
        return self._access

    @property
    def uid(self) -> bytes:
        """Distinguishes the table from earlier ones of its name; empty: there is none at present."""
        return b"" if self._access is None else self._access.table.uid

    def to_json(self) -> dict[str, Any]:
        """Return the table's identity and row counts, as JSON values."""
        return {"uid": self.uid.hex(), **self._pacer.table_count._asdict()}

    def find_again(self, saved: Mapping[str, Any], *, is_shared: bool) -> bool:
        """Resume with the table of an earlier start, and return whether it still exists.

        Args:
            saved: the result of `to_json` in the earlier start.
            is_shared: whether others may have inserted rows since. If so, these rows do not count as steps of the run.

        Raises:
            ReplayError: one of `TABLE_LOST` or another failure.
        """
        access = self.access()
        if saved["uid"] != self.uid.hex():
            return False
        if not is_shared:
            stats = access.table.stats()
            counted = TableCount(saved["inserted"], saved["size"])
            closing_share = stats.steps.closing / stats.size if stats.steps and stats.size else 0.0
            self._pacer.catch_up(counted, stats.inserted, stats.size, closing_share)
        return True

    def flush(self) -> None:
        """Wait until all appended rows are acknowledged, but at most `access.FLUSH_TIMEOUT_S`. Errors are ignored."""
        if self._access is not None:
            self._access.flush()

    def lose(self, error: Exception) -> None:
        """Record that the table no longer exists, so that the next `access` creates a new one."""
        log.warning("the table is gone, creating a new one: %s", error)
        if self._access is None:
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
        """Remove the table from the server.

        Raises:
            ReplayError: one of `TABLE_LOST` if the table is already gone, or another failure.
        """
        if self._access is not None:
            table = self._access.table
            self.close()
            table.drop()

    def close(self) -> None:
        """Flush, if the table still exists, and close the access to it."""
        if self._access is not None:
            self._access.close()
            self._access = None

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
