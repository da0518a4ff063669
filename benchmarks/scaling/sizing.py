"""The formula: how many servers a fleet needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from replay_server.rpc.handlers.inserts import MESSAGES_PER_S

from benchmarks.scaling.costs import Costs

BUSY: Final = 0.6
"""Maximum share of a core or of the network that a server should use. Above it, queues become long."""
SHORTEST_DELAY_S: Final = 0.1
LONGEST_DELAY_S: Final = 1.0
"""Bounds of the interval between two messages of a writer, unless configured otherwise."""


@dataclass(frozen=True)
class Fleet:
    """The load that a training run puts on its table."""

    writers: int
    """Actors with a writer each."""
    rows_per_s: float
    """Rows inserted per second by all writers together."""
    learners: int
    """Learners with a sampler each."""
    steps_per_s: float
    """Batches drawn per second by each learner."""
    batch_size: int
    """Rows of a batch."""
    row_bytes: int
    """Bytes of a row."""
    capacity: int
    """Rows of the table."""

    @property
    def bytes_in_per_s(self) -> float:
        """Bytes of rows that are inserted per second."""
        return self.rows_per_s * self.row_bytes

    @property
    def bytes_out_per_s(self) -> float:
        """Bytes of rows that are drawn per second."""
        return self.learners * self.steps_per_s * self.batch_size * self.row_bytes


@dataclass(frozen=True)
class Machine:
    """A machine with one server."""

    network_bytes_per_s: float
    """Bytes per second in each direction."""
    memory_bytes: float
    """Bytes of memory for the tables."""


APE_X: Final = Fleet(
    writers=360,
    rows_per_s=12_500,
    learners=1,
    steps_per_s=19,
    batch_size=512,
    row_bytes=2 * 84 * 84 * 4 + 45,
    capacity=2_000_000,
)
"""Horgan et al., 2018, sections 4 and 4.1, with rows like those of this project's Atari benchmark."""
MACHINE: Final = Machine(network_bytes_per_s=10e9 / 8, memory_bytes=64e9)
"""10 Gbit/s, 64 GB."""


def delay_s(fleet: Fleet, servers: int) -> float:
    """Return the seconds for which servers ask writers to collect rows; see `WriterPace`."""
    return min(LONGEST_DELAY_S, max(SHORTEST_DELAY_S, fleet.writers / servers / MESSAGES_PER_S))


@dataclass(frozen=True)
class Load:
    """Shares of each server's resources that a fleet uses."""

    copied_in: float
    """Share of a core, for inserted rows."""
    messages_in: float
    """Share of a core, for writers' messages."""
    drawn: float
    """Share of a core, for learners' messages and their rows."""
    network: float
    """Share of the network, in the busier direction."""
    memory: float
    """Share of the memory."""

    @property
    def cpu(self) -> float:
        """Share of a core, altogether."""
        return self.copied_in + self.messages_in + self.drawn

    @property
    def bound(self) -> str:
        """The resource that reaches its limit first."""
        shares = {"CPU": self.cpu / BUSY, "network": self.network / BUSY, "memory": self.memory}
        return max(shares, key=shares.__getitem__)

    @property
    def fits(self) -> bool:
        """Whether all shares are within their limits."""
        return max(self.cpu, self.network) <= BUSY and self.memory <= 1


def load(fleet: Fleet, costs: Costs, machine: Machine, servers: int, delay: float | None = None) -> Load:
    """Compute the load per server. Writers send every ``delay`` seconds or, if None, as often as servers ask for."""
    steps = fleet.learners * fleet.steps_per_s  # each step asks each server
    messages = fleet.writers / servers / (delay_s(fleet, servers) if delay is None else delay)
    busier = max(fleet.bytes_in_per_s, fleet.bytes_out_per_s)
    return Load(
        copied_in=costs.write.seconds(fleet.rows_per_s / servers, fleet.row_bytes, 0),
        messages_in=costs.write.seconds(0, 0, messages),
        drawn=costs.draw.seconds(steps * fleet.batch_size / servers, fleet.row_bytes, steps),
        network=busier / servers / machine.network_bytes_per_s,
        memory=fleet.capacity * fleet.row_bytes / servers / machine.memory_bytes,
    )


def servers_needed(fleet: Fleet, costs: Costs, machine: Machine, most: int = 1024) -> int:
    """Return the smallest number of servers whose loads are within their limits.

    Raises:
        ValueError: ``most`` servers do not suffice. Even more may not help, because each step sends a request to
            every server.
    """
    for servers in range(1, most + 1):
        if load(fleet, costs, machine, servers).fits:
            return servers
    raise ValueError(f"more than {most} servers")
