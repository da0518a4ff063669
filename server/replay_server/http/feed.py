"""The figures of the live page. While any page is open, they are read at most once per second, for all pages.

The page shows the figures of its own server, and links to the other servers of the service.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from uuid import uuid4

import numpy as np
import psutil
from replay_proto.access.tokens import Right
from replay_proto.merged_stats import shards_in_use
from replay_proto.v1 import replay_pb2

from replay_server import __version__
from replay_server.auth import Caller
from replay_server.checkpoint.store import Checkpoints
from replay_server.http.history import Counts, History, Meter
from replay_server.http.page_figures import (
    REFRESH_S,
    checkpoint_figures,
    client_figures,
    distributions_of,
    method_figures,
    table_figures,
    to_json,
)
from replay_server.http.view import View
from replay_server.rpc.handlers.stats import table_stats
from replay_server.table.table import Table


def place_of(shards: replay_pb2.ShardMap | None, port: int) -> dict[str, Any] | None:
    """Return which shard of a service this server is, and where the others are; None if there is only one server."""
    in_use = [] if shards is None else shards_in_use(shards)
    if len(in_use) < 2:
        return None
    here = [shard.id for shard in in_use if _is_here(shard.address, port)]
    own = here[0] if len(here) == 1 else None  # several: this host has several names for the same port
    return {
        "shard": own,
        "servers": len(in_use),
        "others": [{"shard": shard.id, "address": shard.address} for shard in in_use if shard.id != own],
    }


def _is_here(address: str, port: int) -> bool:
    """Whether an address in a shard map is that of this server, as far as its own names tell."""
    host, _, number = address.rpartition(":")
    return number == str(port) and host.strip("[]").lower() in _own_names()


def _own_names() -> set[str]:
    name = socket.gethostname().lower()
    addresses = {each.address for found in psutil.net_if_addrs().values() for each in found}
    return {"localhost", name, name.partition(".")[0], *addresses}


PERIOD_S: Final = 1.0
"""Minimum time between two frames."""
MOST_PAGES: Final = 32
"""Maximum pages open at the same time."""
_REST: Final = 50
"""Minimum time between two frames, as a multiple of a frame's CPU time; with many tables, frames are less frequent."""
_CHECKPOINTS_S: Final = 10.0
"""Minimum age, in seconds, at which the list of checkpoints is read again."""


class Frame:
    """The figures of one moment, for all pages. Each page gets the part that its reader may see."""

    def __init__(
        self, server: dict[str, Any], tables: dict[str, str], checkpoints: list[dict[str, Any]] | None
    ) -> None:
        self._server = server
        self._tables = tables  # JSON by name
        self._checkpoints = checkpoints
        self._events: dict[tuple[bool, tuple[str, ...]], bytes] = {}

    def event_for(self, caller: Caller) -> bytes:
        """Return the event for a reader. Readers with the same rights get the same bytes object."""
        caller.check(Right.READ)
        names = tuple(name for name in self._tables if caller.may(Right.READ, name))
        key = caller.may_on_all(Right.ADMIN), names
        if key not in self._events:
            head = {**self._server, "checkpoints": self._checkpoints if key[0] else None}
            shown = ",".join(self._tables[name] for name in names)
            self._events[key] = f'data: {to_json(head)[:-1]},"tables":[{shown}]}}\n\n'.encode()
        return self._events[key]


class Feed:
    """Makes frames and keeps the history."""

    def __init__(self, view: View, checkpoints: Checkpoints | None) -> None:
        """Show a server and its checkpoints; None if these are disabled."""
        self.pages = 0
        """Number of open pages."""
        self._view = view
        self._meter = Meter()
        self._history = History()
        self._store = checkpoints
        self._checkpoints: list[dict[str, Any]] | None = None
        self._listing: asyncio.Task[None] | None = None
        self._listed_s = -_CHECKPOINTS_S
        self._distributions: dict[bytes, tuple[float, dict[str, Any]]] = {}
        self._instance = uuid4().hex
        self._began = time.monotonic()
        self._process = psutil.Process()
        self._random = np.random.default_rng()
        self.next_frame: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        """The next frame."""

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Count a page as open inside the block."""
        self.pages += 1
        try:
            yield
        finally:
            self.pages -= 1

    def history_of(self, name: str) -> dict[str, list[float]]:
        """Return the rates of a table over the last ten minutes; see `History.points`."""
        return self._history.points(self._view.catalog.find(name).uid)

    async def go_on(self) -> None:
        """Record the history, make a frame if pages are open, and wait until the next one is due."""
        began = time.monotonic()
        self._record()
        spent_s = await self._publish() if self.pages else 0.0
        await asyncio.sleep(max(PERIOD_S, _REST * spent_s) - (time.monotonic() - began))

    def _record(self) -> None:
        """Record the rates of all tables since the last call, and let their clients record their counts."""
        tables = list(self._view.catalog)
        counts = {each.uid: Counts(each.inserted, each.figures.draws, each.figures.updates) for each in tables}
        rates = self._meter.rates(counts)
        self._history.tick({uid: rates.get(uid) for uid in counts})
        for client in (client for table in tables for client in table.figures.clients):
            client.mark()

    async def _publish(self) -> float:
        """Make a frame; return its CPU time in seconds. After each table, other calls can run."""
        self._list_checkpoints()
        tables, spent_s = await self._tables()
        began = time.thread_time()
        self.next_frame.set_result(Frame(self._server(), tables, self._checkpoints))
        self.next_frame = asyncio.get_running_loop().create_future()
        return spent_s + time.thread_time() - began

    async def _tables(self) -> tuple[dict[str, str], float]:
        """Return the JSON of this server's tables by name, and the CPU time in seconds."""
        spent_s, tables = 0.0, {}
        made: dict[bytes, tuple[float, dict[str, Any]]] = {}
        async for table in self._view.catalog.in_turns():
            began = time.thread_time()
            made[table.uid] = self._distribution(table)
            tables[table.name] = to_json(
                {
                    **table_figures(table_stats(table, self._view.catalog.waits(table))),
                    "points": self._history.points(table.uid, 1),
                    **client_figures(table.figures.clients),
                    **made[table.uid][1],
                }
            )
            spent_s += time.thread_time() - began
        self._distributions = made
        return tables, spent_s

    def _distribution(self, table: Table) -> tuple[float, dict[str, Any]]:
        now = time.monotonic()
        known = self._distributions.get(table.uid)
        if known is not None and now - known[0] < REFRESH_S:
            return known
        return now, distributions_of(table, self._random)

    def _server(self) -> dict[str, Any]:
        with self._process.oneshot():
            times, memory = self._process.cpu_times(), self._process.memory_info()
        return {
            "at": time.time(),
            "instance": self._instance,
            "version": __version__,
            "state": self._view.state,
            "uptime_s": time.monotonic() - self._began,
            "cpu_s": times.user + times.system,
            "resident_bytes": memory.rss,
            "storage": self._view.storage()._asdict(),
            "place": place_of(self._view.catalog.shards.to_proto(), self._view.port),
            "methods": [method_figures(name, endpoint) for name, endpoint in self._view.endpoints().items()],
        }

    def _list_checkpoints(self) -> None:
        """List checkpoints in the background, because their disk may be slow."""
        now = time.monotonic()
        if self._store is None or now - self._listed_s < _CHECKPOINTS_S:
            return
        if self._listing is None or self._listing.done():
            self._listed_s = now
            self._listing = asyncio.create_task(self._list(self._store))

    async def _list(self, store: Checkpoints) -> None:
        with suppress(OSError):
            self._checkpoints = checkpoint_figures((await store.all()).whole)
