"""Guides the actors of a run: publishes what they need, and collects their episodes, in tables on the replay server.

All of it happens in one thread, so that the training loop never waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import numpy as np
from replay_client import (
    DeadlineExceededError,
    ReplayClient,
    ReplayError,
    Rows,
    ServerUnavailableError,
    ShardedTable,
    Table,
    TableNotFoundError,
)
from torch import Tensor

from replay_agent.acting.actor import FinishedEpisode
from replay_agent.distributed.run_tables import (
    AWAY,
    EPISODE_COLUMNS,
    EPISODES_CAPACITY,
    HEARTBEAT_S,
    ActorTask,
    Progress,
    Report,
    RunTables,
    reports_of,
)
from replay_agent.replay.run_table import TABLE_LOST

log = logging.getLogger(__name__)

EPISODES_S: Final = 0.2
"""Interval at which episodes are read."""
MAX_WAITING: Final = 10_000
"""Episodes that may wait for the training loop; the others stay in their table."""
_POLL_S: Final = 0.05
"""Interval between polls of what the training loop has done."""
_END_S: Final = 5.0
"""Time limit for telling actors that the run is over."""
_READ_ROWS: Final = 1_000
_GOAL_SHARE: Final = 0.25
"""Share of the lead by which the goal moves before it is published again."""
_EPSILON_SHARE: Final = 0.02
"""Relative change of epsilon after which it is published again."""
_NAMED: Final = 10
"""Names of actors in a line of the log; the others are counted."""


class Guidance(NamedTuple):
    """What the training loop wants its actors to do; see `Progress`."""

    table: int
    goal: int
    epsilon: float


class ActorGuide:
    """See the module. The training loop calls its methods; only `end` and `drop` wait for the server."""

    def __init__(
        self,
        client: ReplayClient,
        run: str,
        task: ActorTask,
        guide: Callable[[], Guidance],
        *,
        lead_steps: int,
        reconnect_timeout_s: float,
    ) -> None:
        """Publish the task, and start the thread, which calls ``guide`` for what actors may do now.

        The ``client`` has the time limit `run_tables.CALL_S`. Actors may be ``lead_steps`` ahead of the learner.
        """
        self.actors_joined = 0
        """Number of actors that have joined so far."""
        self.missed = 0
        """Episodes that were lost because too many were reported at once, or whose figures are impossible."""
        self._impossible = 0
        self._client = client
        self._tables = RunTables.of(run)
        self._task = task
        self._guide = guide
        self._goal_change = max(1, int(lead_steps * _GOAL_SHARE))
        self._reconnect_timeout_s = reconnect_timeout_s
        self._weights: Mapping[str, Tensor] | None = None
        self._published_weights: Mapping[str, Tensor] | None = None
        self._weights_version = 0
        self._published: Progress | None = None
        self._published_at = 0.0
        self._joined: set[int] = set()
        self._episodes: deque[FinishedEpisode] = deque()
        self._failure: ReplayError | None = None
        self._is_over = False
        self._has_ended = threading.Event()
        # The values of an earlier start may have had another structure.
        for name in (self._tables.task, self._tables.weights):
            self._drop(name)
        self._reader = _NewRows(client, self._tables.episodes)
        self._publish_progress()
        self._thread = threading.Thread(target=self._run, name="actor-guide", daemon=True)
        self._thread.start()

    def publish(self, weights: Mapping[str, Tensor]) -> None:
        """Have new weights published; copies them on their device."""
        self._weights = {name: tensor.detach().clone() for name, tensor in weights.items()}

    def take_episodes(self, limit: int) -> list[FinishedEpisode]:
        """Remove and return the oldest episodes of actors, at most ``limit``.

        Raises:
            ReplayError: the server refuses, or was unreachable for too long.
        """
        if self._failure is not None:
            raise self._failure
        return [self._episodes.popleft() for _ in range(min(limit, len(self._episodes)))]

    def end(self, *, is_over: bool) -> None:
        """Read the last episodes, and stop publishing. Idempotent.

        If the run ``is_over``, actors are told so, and exit. Otherwise, they wait for a trainer that resumes it.
        """
        self._is_over = is_over
        self._has_ended.set()
        self._thread.join(_END_S)

    def drop(self) -> None:
        """Remove the tables, after `end`."""
        for name in self._tables:
            self._drop(name)

    def _drop(self, name: str) -> None:
        with suppress(TableNotFoundError):
            self._client.drop_table(name)

    def _run(self) -> None:
        answered_at = time.monotonic()
        episodes_at = 0.0
        while True:
            is_last = self._has_ended.wait(_POLL_S)
            now = time.monotonic()
            try:
                self._publish_weights()
                self._publish_progress(is_finished=self._is_over)
                if is_last or now - episodes_at >= EPISODES_S:
                    self._read_episodes()
                    episodes_at = now
                answered_at = time.monotonic()
            except AWAY as error:
                if now - answered_at > self._reconnect_timeout_s:
                    self._failure = error
            except ReplayError as error:
                self._failure = error
            if is_last or self._failure is not None:
                return

    def _publish_weights(self) -> None:
        """Publish the newest weights, if an actor may use them."""
        weights = self._weights
        if weights is self._published_weights or weights is None or not self.actors_joined:
            return
        values = {name: tensor.cpu() for name, tensor in weights.items()}
        self._weights_version = self._client.publish(self._tables.weights, values)
        self._published_weights = weights

    def _publish_progress(self, *, is_finished: bool = False) -> None:
        progress = Progress(self._task.start, *self._guide(), self._weights_version, is_finished)
        now = time.monotonic()
        is_heartbeat = now - self._published_at >= HEARTBEAT_S
        if is_heartbeat:
            self._replace_lost()
        if is_heartbeat or self._is_news(progress):
            self._client.publish(self._tables.progress, progress._asdict())
            self._published, self._published_at = progress, now

    def _replace_lost(self) -> None:
        """Publish again what is gone, because the server was restarted without its tables, or its shard was removed."""
        try:
            self._client.latest(self._tables.task, timeout_s=0)
        except (TableNotFoundError, DeadlineExceededError):
            self._client.publish(self._tables.task, self._task.to_state())
            self._published_weights = None

    def _is_news(self, progress: Progress) -> bool:
        old = self._published
        if old is None or old._replace(goal=progress.goal, epsilon=progress.epsilon) != progress:
            return True
        epsilon_change = abs(progress.epsilon - old.epsilon)
        return abs(progress.goal - old.goal) >= self._goal_change or epsilon_change > _EPSILON_SHARE * old.epsilon

    def _read_episodes(self) -> None:
        joined = []
        while len(self._episodes) < MAX_WAITING and (rows := self._reader.read(_READ_ROWS)) is not None:
            for report in reports_of(rows):
                if report.episode is None:
                    joined.append(report)
                elif report.is_valid:
                    self._episodes.append(report.episode)
                else:
                    self._impossible += 1
        self.missed = self._reader.missed + self._impossible
        self._note_joined(joined)

    def _note_joined(self, reports: list[Report]) -> None:
        """Number actors, and log their names, which are not trusted and therefore escaped."""
        new = [report for report in reports if report.actor not in self._joined]
        if not new:
            return
        first = self.actors_joined + 1
        self._joined.update(report.actor for report in new)
        self.actors_joined = first + len(new) - 1
        names = [repr(report.name) for report in new[:_NAMED]]
        others = f" and {len(new) - _NAMED} others" if len(new) > _NAMED else ""
        numbers = f"actor {first}" if len(new) == 1 else f"actors {first} to {self.actors_joined}"
        log.info("%s joined: %s%s", numbers, ", ".join(names), others)


class _NewRows:
    """Reads the rows of a table in order of insertion, each once, beginning with the next one."""

    def __init__(self, client: ReplayClient, name: str) -> None:
        """Create the table, unless it exists."""
        self._client = client
        self._name = name
        self.missed = 0
        """Rows that were evicted before they were read."""
        self._open()
        self._next = {id: part.describe().inserted for id, part in self._parts().items()}

    def read(self, limit: int) -> Rows | None:
        """Return up to ``limit`` new rows of one server; None: there are none. Servers that are away are left out."""
        try:
            for id, part in self._parts().items():
                with suppress(ServerUnavailableError):
                    rows = self._read_part(id, part, limit)
                    if rows is not None:
                        return rows
        except TABLE_LOST:
            self._next = {}
            self._open()
        return None

    def _read_part(self, id: int, part: Table, limit: int) -> Rows | None:
        table = part.describe()
        known = min(self._next.get(id, 0), table.inserted)
        first = max(known, table.inserted - table.size)
        if first == table.inserted:
            return None
        rows = part.read(np.arange(first, min(first + limit, table.inserted)))
        self.missed += first - known
        self._next[id] = min(first + limit, table.inserted)
        return rows

    def _open(self) -> None:
        self._table = self._client.create_table(
            self._name, columns=EPISODE_COLUMNS, capacity=EPISODES_CAPACITY, backend="uniform", if_exists="open"
        )

    def _parts(self) -> Mapping[int, Table]:
        """Return the table's parts by the number of their server."""
        return self._table.shards if isinstance(self._table, ShardedTable) else {0: self._table}
