"""A simulation of writers, servers and learners by discrete events, with measured costs.

A server has three resources: its core, and its network link in each direction. A learner has two that matter: its core
and its incoming network link. A resource serves one request after another, in order of arrival.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from benchmarks.scaling.costs import Costs
from benchmarks.scaling.sizing import Fleet, Machine, delay_s

PREFETCH: Final = 2
"""Batches in flight per learner."""
ROWS_PER_EPISODE: Final = 256
"""After this many rows, a writer switches to the emptier of two random servers."""
MOST_BYTES: Final = 8_000_000
"""Maximum bytes of rows per message."""
WARM_UP_S: Final = 2.0

Then = Callable[[], None]


class Clock:
    """Keeps the simulated time, and processes events in order of time."""

    def __init__(self) -> None:
        """Begin at time 0."""
        self.now = 0.0
        self._events: list[tuple[float, int, Then]] = []
        self._order = itertools.count()

    def at(self, time: float, then: Then) -> None:
        """Call ``then`` at this simulated time."""
        heapq.heappush(self._events, (time, next(self._order), then))

    def run(self, until: float) -> None:
        """Process all events up to this simulated time."""
        while self._events and self._events[0][0] <= until:
            self.now, _, then = heapq.heappop(self._events)
            then()
        self.now = until


class Resource:
    """Serves requests in order of arrival."""

    def __init__(self, clock: Clock) -> None:
        """Start idle."""
        self._clock = clock
        self._free_at = self._promised_s = 0.0

    def serve(self, seconds: float, then: Then) -> None:
        """Serve a request that arrives now, and call ``then`` when it is done."""
        self._free_at = max(self._free_at, self._clock.now) + seconds
        self._promised_s += seconds
        self._clock.at(self._free_at, then)

    @property
    def busy_s(self) -> float:
        """Seconds spent on serving requests so far."""
        return self._promised_s - max(0.0, self._free_at - self._clock.now)


@dataclass
class Node:
    """A server, or a learner's machine."""

    core: Resource
    receiving: Resource
    sending: Resource
    rows: int = 0

    @classmethod
    def on(cls, clock: Clock) -> Node:
        """Create an idle node."""
        return cls(Resource(clock), Resource(clock), Resource(clock))


@dataclass(frozen=True)
class Outcome:
    """What happened after the warm-up, per second."""

    rows_per_s: float
    """Rows inserted by all writers."""
    messages_per_s: float
    """Messages of all writers."""
    steps_per_s: float
    """Steps of all learners."""
    core: float
    """Busiest server's share of its core."""
    network: float
    """Busiest server's share of its network, in the busier direction."""
    learner_core: float
    """Busiest learner's share of its core, without the computation of its steps."""
    learner_network: float
    """Busiest learner's share of its network."""

    @property
    def bound(self) -> str:
        """The busiest resource."""
        shares = {
            "CPU of servers": self.core,
            "network of servers": self.network,
            "CPU of learners": self.learner_core,
            "network of learners": self.learner_network,
        }
        return max(shares, key=shares.__getitem__)


@dataclass
class Simulation:
    """A fleet with servers."""

    fleet: Fleet
    costs: Costs
    machine: Machine
    servers: int
    delay: float | None = None
    """Seconds between two messages of a writer; None: the interval that the servers ask for."""
    clock: Clock = field(default_factory=Clock)
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    inserted: int = 0
    messages: int = 0
    steps: int = 0

    def __post_init__(self) -> None:
        """Start all writers and learners."""
        self.nodes = [Node.on(self.clock) for _ in range(self.servers)]
        self.learner_nodes = [Node.on(self.clock) for _ in range(self.fleet.learners)]
        if self.delay is None:
            self.delay = delay_s(self.fleet, self.servers)
        for _ in range(self.fleet.writers):
            _Writer(self, self.delay).start()
        for node in self.learner_nodes:
            _Learner(self, node).start()

    def run(self, seconds: float) -> Outcome:
        """Simulate this many seconds after the warm-up."""
        self.clock.run(WARM_UP_S)
        before = self._counts()
        self.clock.run(WARM_UP_S + seconds)
        changes = [after - earlier for after, earlier in zip(self._counts(), before, strict=True)]
        rows, messages, steps, *busy = (change / seconds for change in changes)
        of_servers, of_learners = busy[: 3 * self.servers], busy[3 * self.servers :]
        return Outcome(
            rows,
            messages,
            steps,
            core=max(of_servers[::3]),
            network=max(*of_servers[1::3], *of_servers[2::3]),
            learner_core=max(of_learners[::3], default=0.0),
            learner_network=max(of_learners[1::3], default=0.0),
        )

    def send(self, row_bytes: float, out_of: Resource, into: Resource, then: Then) -> None:
        """Send bytes of rows over the network. When the sender is done, the receiver is busy for the same time."""
        seconds = row_bytes / self.machine.network_bytes_per_s
        out_of.serve(seconds, lambda: into.serve(seconds, then))

    def _counts(self) -> list[float]:
        nodes = (*self.nodes, *self.learner_nodes)
        busy = [each.busy_s for node in nodes for each in (node.core, node.receiving, node.sending)]
        return [self.inserted, self.messages, self.steps, *busy]


class _Writer:
    """Sends its rows in blocks, and waits for the acknowledgement of each block before it sends the next."""

    def __init__(self, of: Simulation, delay: float) -> None:
        self._of, self._delay = of, delay
        self._rows_per_s = of.fleet.rows_per_s / of.fleet.writers
        self._most = max(1, int(MOST_BYTES // of.fleet.row_bytes))
        self._began = of.rng.random() * delay
        self._sent = self._in_episode = 0
        self._server = of.rng.choice(of.nodes)

    def start(self) -> None:
        self._of.clock.at(self._began + self._delay, self._write)

    def _write(self) -> None:
        of = self._of
        ready = int((of.clock.now - self._began) * self._rows_per_s) - self._sent
        count = min(ready, self._most)
        if not count:
            of.clock.at(of.clock.now + self._delay, self._write)
            return
        if self._in_episode >= ROWS_PER_EPISODE:
            self._server, self._in_episode = min(of.rng.choices(of.nodes, k=2), key=lambda node: node.rows), 0
        server, row_bytes = self._server, of.fleet.row_bytes
        server.rows += count
        self._sent += count
        self._in_episode += count

        def acknowledge() -> None:
            of.inserted += count
            of.messages += 1
            # After a full block, a writer sends the next block immediately.
            of.clock.at(of.clock.now + (0 if count == self._most else self._delay), self._write)

        seconds = of.costs.write.seconds(count, row_bytes)
        server.receiving.serve(
            count * row_bytes / of.machine.network_bytes_per_s, lambda: server.core.serve(seconds, acknowledge)
        )


class _Learner:
    """Draws batches from all servers, a few batches ahead of learning."""

    def __init__(self, of: Simulation, node: Node) -> None:
        self._of, self._node = of, node
        self._computing = Resource(of.clock)
        self._compute_s = 1 / of.fleet.steps_per_s
        cuts = [of.fleet.batch_size * number // of.servers for number in range(of.servers + 1)]
        self._shares = [end - begin for begin, end in itertools.pairwise(cuts)]

    def start(self) -> None:
        for _ in range(PREFETCH):
            self._of.clock.at(self._of.rng.random() * self._compute_s, self._ask)

    def _ask(self) -> None:
        """Ask each server for its share of a batch; the requests also carry the updates of earlier rows."""
        waiting = [self._of.servers]

        def arrive() -> None:
            waiting[0] -= 1
            if not waiting[0]:
                self._learn()

        for server, rows in zip(self._of.nodes, self._shares, strict=True):
            self._draw(server, rows, arrive)

    def _draw(self, server: Node, rows: int, then: Then) -> None:
        of, row_bytes = self._of, self._of.fleet.row_bytes

        def read() -> None:
            self._node.core.serve(of.costs.learner.seconds(rows, row_bytes), then)

        def reply() -> None:
            of.send(rows * row_bytes, server.sending, self._node.receiving, read)

        server.core.serve(of.costs.draw.seconds(rows, row_bytes), reply)

    def _learn(self) -> None:
        def end() -> None:
            self._of.steps += 1
            self._ask()

        self._computing.serve(self._compute_s, end)
