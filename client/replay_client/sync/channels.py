"""State under names, such as the newest weights of a policy; see `ReplayClient.publish` and `ReplayClient.latest`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from replay_client._operations.channel import (
    LOOK_AGAIN_S,
    Channel,
    Shown,
    checked_version,
    not_published,
    nothing_yet,
    too_late,
)
from replay_client._rows.published_state import PublishedState
from replay_client._transport.call import Operation, ended_by, time_limit
from replay_client._transport.long_waits import LongWait
from replay_client.batch import Published
from replay_client.errors import ServerUnavailableError, TableNotFoundError, TableReplacedError
from replay_client.sync.table import Table

if TYPE_CHECKING:
    from replay_client.sync.client import ReplayClient

C = TypeVar("C")
T = TypeVar("T")


class KnownChannels(Generic[C]):
    """Base class of the names under which a client has published or read something."""

    def __init__(self) -> None:
        self._tables: dict[str, C] = {}  # kept, because each maps the server's files
        self._channels: dict[str, Channel] = {}  # of the tables, by the same names
        self._shown: dict[str, Shown] = {}  # what `latest` has returned last, by name

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()  # a copy opens the tables itself: copied memory would never change

    def forget(self, name: str) -> None:
        """Release the files of a table that is dropped."""
        self._tables.pop(name, None)
        self._channels.pop(name, None)


class Channels(KnownChannels[Table]):
    """The names that a blocking client knows. Thread-safe."""

    def publish(self, client: ReplayClient, name: str, values: Any, timeout_s: float | None) -> int:
        """See `ReplayClient.publish`."""
        state = PublishedState(values)
        limit_s = time_limit("timeout_s", timeout_s, client._session.options.timeout_s)
        deadline = time.monotonic() + (limit_s or math.inf)
        try:
            return self._publish(client, name, state, limit_s, deadline)
        except (TableNotFoundError, TableReplacedError):  # it was dropped since the last call
            return self._publish(client, name, state, limit_s, deadline)

    def latest(self, client: ReplayClient, name: str, wait_newer: int | None, timeout_s: float | None) -> Published:
        """See `ReplayClient.latest`."""
        known = checked_version(wait_newer)
        limit_s = time_limit("timeout_s", timeout_s, client._session.options.timeout_s)
        deadline = time.monotonic() + limit_s
        calls_end = deadline if limit_s else math.inf
        # It is usual to wait long for another version.
        with LongWait(f"client.latest({name!r})", nothing_yet(name)) if known is None else nullcontext():
            while True:
                left_s = max(0.0, deadline - time.monotonic())
                try:
                    look = partial(Channel.latest, known=known, wait_s=left_s, shown=self._shown.get(name))
                    found = ended_by(calls_end, partial(self._run, client, name, None, look))
                except (TableNotFoundError, TableReplacedError):
                    if not left_s:
                        raise not_published(name, limit_s) from None
                    time.sleep(min(left_s, LOOK_AGAIN_S))
                    continue
                if found is not None:
                    self._shown[name] = found
                    return found.published
                if not left_s:
                    raise too_late(name, known, limit_s)

    def _publish(self, client: ReplayClient, name: str, state: PublishedState, limit_s: float, deadline: float) -> int:
        ended_by(deadline, partial(self._run, client, name, state, partial(Channel.check, state=state)))
        # Each insert has this limit, because a large state takes many.
        return self._run(client, name, state, partial(Channel.publish, state=state, timeout_s=limit_s))

    def _run(
        self,
        client: ReplayClient,
        name: str,
        state: PublishedState | None,
        operation: Callable[[Channel], Operation[T]],
    ) -> T:
        """Run an operation of a channel. If its table has gone, forget it, so that the next call opens another one."""
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = _opened(client, name, state)
        try:
            shard_id, home = table._home()
            channel = self._channels.get(name)
            if channel is None or channel.uid != home.uid:
                channel = self._channels[name] = Channel(home._description, home._operations, shard_id)
            return home._run_near(operation(channel))
        except (TableNotFoundError, TableReplacedError, ServerUnavailableError):
            self.forget(name)
            raise


def _opened(client: ReplayClient, name: str, state: PublishedState | None) -> Table:
    """Open the table of a name. If there is none, create it for a state."""
    try:
        return client.table(name)
    except TableNotFoundError:
        if state is None:
            raise
    capacity = state.capacity * client._server_count()
    return client.create_table(name, columns=state.columns, capacity=capacity, backend="uniform", if_exists="open")
