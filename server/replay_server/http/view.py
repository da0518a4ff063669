"""What readers over HTTP see of the server at one moment: figures that the server records anyway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from replay_proto.access.tokens import Right

from replay_server.auth import Caller
from replay_server.catalog import Catalog
from replay_server.errors import WaitedFor
from replay_server.files.memory_limit import MemoryUse
from replay_server.flow.background import Background, Loop
from replay_server.flow.waits import Wait
from replay_server.rpc.endpoint import AnyEndpoint
from replay_server.rpc.over_grpc.connections import Connections
from replay_server.table.gates import LimiterGate
from replay_server.table.items.items import StepCounts
from replay_server.table.table import Table
from replay_server.table.table_figures import CurrentFigures

State = Literal["starting", "ready", "stopping"]


class Limiter(NamedTuple):
    """State of a rate limiter."""

    difference: float
    """The value that the limiter keeps within bounds; see `LimiterGate.difference`."""
    least: float
    """Lower bound. Draws wait if they would make the difference smaller than this."""
    most: float
    """Upper bound. Inserts wait if they would make the difference larger than this."""


@dataclass(frozen=True)
class TableView:
    """One table at one moment."""

    name: str
    rows: int
    """Live rows."""
    capacity: int
    drawable: int
    """Rows that can be drawn."""
    inserted: int
    """Rows ever inserted."""
    reserved_bytes: int
    """Bytes reserved so far for the table's files."""
    unsynced: int
    """Rows inserted since the last sync; 0 without checksums."""
    lost: int
    """Rows lost to power losses."""
    may_wait_for: Sequence[WaitedFor]
    """What calls of this table may have to wait for."""
    waits: Sequence[Wait]
    """What calls wait for now."""
    figures: CurrentFigures
    """Statistics since the server started."""
    steps: StepCounts | None
    """Counts of rows by the state of their steps; None unless this is a table of steps."""
    limiter: Limiter | None
    """State of the rate limiter; None if the table has none."""


class Storage(NamedTuple):
    """The file system of the tables."""

    free_bytes: int
    """Bytes that the server may still use."""
    size_bytes: int


@dataclass(frozen=True)
class ServerView:
    """The server at one moment. Each table is read atomically, but other calls can run after each table."""

    tables: Sequence[TableView]
    """The tables that the reader may read, sorted by name."""
    endpoints: Mapping[str, AnyEndpoint]
    """The RPCs called so far, with their figures, by name."""
    storage: Storage
    connections_refused: int
    """Connections over the limit."""
    memory: MemoryUse | None
    """The limit of the server's cgroup on memory, and its use; None if there is no limit."""
    loops: Mapping[str, Loop]
    """The loops in the background, by name."""


class View:
    """The server as readers see it."""

    def __init__(
        self,
        catalog: Catalog,
        endpoints: Mapping[str, AnyEndpoint],
        background: Background,
        connections: Connections,
    ) -> None:
        self.catalog = catalog
        """The tables."""
        self.background = background
        """The loops of the server."""
        self._endpoints = endpoints
        self._connections = connections
        self.state: State = "starting"
        """``starting`` until the kernels are loaded and the tables are open; ``stopping`` during shutdown."""

    async def of_server(self, caller: Caller) -> ServerView:
        """Read the server's figures, and those of all tables that the caller may read."""
        caller.check(Right.READ)
        tables = [
            _read(table, tuple(self.catalog.waits(table)))
            async for table in self.catalog.in_turns()
            if caller.may(Right.READ, table.name)
        ]
        return ServerView(
            tables=tables,
            endpoints=self.endpoints(),
            storage=self.storage(),
            connections_refused=self._connections.refused,
            memory=self.catalog.memory.read(),
            loops=self.background.loops,
        )

    @property
    def port(self) -> int:
        """The server's port for gRPC."""
        return self._connections.port

    def endpoints(self) -> dict[str, AnyEndpoint]:
        """The RPCs called so far, by name."""
        return {name: endpoint for name, endpoint in sorted(self._endpoints.items()) if endpoint.figures.is_used}

    def storage(self) -> Storage:
        """Read the size of the tables' file system."""
        found = self.catalog.owner.file_system()
        return Storage(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def _may_wait_for(table: Table) -> Sequence[WaitedFor]:
    always: tuple[WaitedFor, ...] = ("turn", "rows") if table.config.steps is None else ("turn", "rows", "windows")
    if table.config.is_queue:
        return (*always, "room")
    return always if table.config.rate_limit is None else (*always, "samples", "inserts")


def _read(table: Table, waits: Sequence[Wait]) -> TableView:
    gate = table.gate
    return TableView(
        name=table.name,
        rows=table.size,
        capacity=table.config.capacity,
        drawable=table.drawable,
        inserted=table.inserted,
        reserved_bytes=table.directory.reserved_bytes,
        unsynced=table.directory.unsynced,
        lost=table.directory.lost,
        may_wait_for=_may_wait_for(table),
        waits=waits,
        figures=table.figures.now(),
        steps=table.step_counts,
        limiter=Limiter(gate.difference, gate.limit.min_diff, gate.limit.max_diff)
        if table.config.rate_limit is not None and isinstance(gate, LimiterGate)
        else None,
    )
