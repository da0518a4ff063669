"""Kills servers of a table over several servers under load again and again, and audits the table after every kill.

    python -m tools.faults.shard_torture --kills 100 --report docs/operations/reliability.md

Actors and a learner of the client library run all the time. Each row has a number, so that the audit knows which rows
were acknowledged, and which priority the learner set last.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts import Parameter
from cyclopts.types import PositiveInt
from numpy.typing import NDArray
from replay_client import Column, ReplayClient, ShardedTable
from replay_client._shards.keys import global_keys
from replay_client.sync.shards.drawing.sharded_sampler import ShardedSampler
from replay_proto.command_line import new_app, run_app
from rich.progress import track

from tests.support.server_process import ServerProcess
from tools.faults.report import document_with, write_section

SHARDS = 3
STREAMS = (1, 4)
"""Streams of each actor."""
CAPACITY = 6_000_000
"""No row is evicted."""
NUMBERS_PER_ACTOR = 10**9
_BATCH = 64
_PAUSE_S = 0.004
"""Pause of an actor between two groups of rows."""
_SHORTEST_LOAD_S, _LONGEST_LOAD_S = 0.02, 0.4
_TWO_AT_ONCE = 0.2
"""Fraction of rounds in which two servers are killed."""
_KILLED_WHILE_STARTING = 0.2
_START_S = 0.7
"""Maximum delay of a kill during startup."""
_PATIENCE_S = 60.0


@dataclass
class Figures:
    """Result of a torture run."""

    kills: int = 0
    """Servers that were killed under load."""
    kills_while_starting: int = 0
    """Servers that were killed while they recovered."""
    rows: int = 0
    """Rows acknowledged."""
    repeated: int = 0
    """Inserts that were sent again and had been applied."""
    priorities: int = 0
    """Priorities that the learner set."""
    batches: int = 0
    """Batches drawn."""
    audits: int = 0
    """Audits of the number of rows in each shard."""
    longest_steps_s: list[float] = field(default_factory=list)
    """The learner's longest step in each round."""

    def lines(self) -> Iterator[tuple[str, str]]:
        """A description and the figure."""
        yield "servers killed under load", f"{self.kills:,}"
        yield "and killed again while they started", f"{self.kills_while_starting:,}"
        yield "rows acknowledged", f"{self.rows:,}"
        yield "inserts without an answer that had been applied", f"{self.repeated:,}"
        yield "batches drawn", f"{self.batches:,}"
        yield "priorities set", f"{self.priorities:,}"
        yield "audits of all shards", f"{self.audits:,}"
        yield "median of the learner's longest step around a kill", f"{statistics.median(self.longest_steps_s):.2f} s"
        # Any violation would have ended the run.
        yield "calls that failed, acknowledged rows lost, rows doubled, priorities lost", "0"


class Actor:
    """Writes episodes of numbered rows."""

    def __init__(self, table: ShardedTable, number: int, streams: int, seed: int) -> None:
        self.writer = table.writer(streams=streams, block_rows=32)
        self.appended = 0
        """Rows appended so far: the numbers from ``number * NUMBERS_PER_ACTOR``."""
        self._base = number * NUMBERS_PER_ACTOR
        self._random = np.random.default_rng(seed)

    def work(self) -> None:
        """Append some rows, and end some episodes."""
        streams = len(self.writer)
        for _ in range(int(self._random.integers(1, 8))):
            self.writer.append_all(number=self._base + self.appended + np.arange(streams))
            self.appended += streams
        self.writer.end_episodes(self._random.random(streams) < 0.2)

    def numbers(self) -> NDArray[np.int64]:
        """The numbers of all its rows."""
        return self._base + np.arange(self.appended)


class Learner:
    """Draws batches, and sets the priorities of their rows."""

    def __init__(self, table: ShardedTable, seed: int) -> None:
        sampler = table.sampler(_BATCH, beta=0.5, prefetch=3, timeout_s=_PATIENCE_S)
        assert isinstance(sampler, ShardedSampler)
        self.sampler = sampler
        self.last: dict[int, float] = {}
        """The priority that was set last, by key."""
        self.batches = self.updates = 0
        self.longest_s = 0.0
        """Duration of the longest step since it was set to 0."""
        self._random = np.random.default_rng(seed)

    def work(self) -> None:
        """Take a step."""
        began = time.monotonic()
        batch = next(self.sampler)
        priorities = self._random.exponential(size=_BATCH)
        self.sampler.update_priorities(batch, priorities)
        self.longest_s = max(self.longest_s, time.monotonic() - began)
        self.last.update(zip(batch.row_keys.tolist(), priorities.tolist(), strict=True))
        self.batches += 1
        self.updates += _BATCH


class ShardTorture:
    """Servers, their load, and its records."""

    def __init__(self, servers: Sequence[ServerProcess], seed: int) -> None:
        """Create a table on durable servers, and put load on it."""
        self.figures = Figures()
        self._servers = servers
        self._repeats: dict[str, int] = {}  # repeated inserts that each server has counted since its start, by address
        self._random = random.Random(seed)
        self._client = ReplayClient(",".join(server.address for server in servers), same_host=seed % 2 == 0)
        table = self._client.create_table("t", columns={"number": Column("int64")}, capacity=CAPACITY, alpha=0.6)
        assert isinstance(table, ShardedTable)
        self._table = table
        self._actors = [Actor(table, number, streams, seed + number) for number, streams in enumerate(STREAMS)]
        self._actors[0].work()
        self._actors[0].writer.flush()
        self._learner = Learner(table, seed)
        workers: list[Actor | Learner] = [*self._actors, self._learner]
        self._turns = [threading.Lock() for _ in workers]
        self._is_over = threading.Event()
        self._threads = ThreadPoolExecutor(len(workers))
        self._running: list[Future[None]] = [
            self._threads.submit(self._load, worker.work, turn)
            for worker, turn in zip(workers, self._turns, strict=True)
        ]

    def round(self) -> None:
        """Kill a server or two, restart them, audit.

        Raises:
            AssertionError: rows or priorities are missing, or there are too many rows.
            ReplayError: a call of an actor or of the learner failed.
        """
        self._learner.longest_s = 0.0
        time.sleep(self._random.uniform(_SHORTEST_LOAD_S, _LONGEST_LOAD_S))
        killed = self._random.sample(self._servers, 2 if self._random.random() < _TWO_AT_ONCE else 1)
        for server in killed:
            server.kill()
        time.sleep(self._random.uniform(_SHORTEST_LOAD_S, _LONGEST_LOAD_S))
        for server in killed:
            if self._random.random() < _KILLED_WHILE_STARTING:
                server.kill_while_starting(self._random.uniform(0.0, _START_S))
                self.figures.kills_while_starting += 1
            server.restart()
        self.figures.kills += len(killed)
        for server in killed:
            self._repeats.pop(server.address, None)
        self.figures.longest_steps_s.append(self._learner.longest_s)
        self._quietly(self._audit_counts)

    def close(self) -> None:
        """End the load, and compare every row and every priority."""
        self._is_over.set()
        self._threads.shutdown()
        for each in self._running:
            each.result()
        for actor in self._actors:
            actor.writer.close(timeout_s=_PATIENCE_S)
        self._audit_counts()
        self._audit_rows()
        self._learner.sampler.close()
        self._note_figures()
        self._client.close()

    def _load(self, work: Callable[[], None], turn: threading.Lock) -> None:
        while not self._is_over.is_set():
            with turn:
                work()
            time.sleep(_PAUSE_S)

    def _quietly(self, audit: Callable[[], None]) -> None:
        """Run an audit while nobody works."""
        for turn, running in zip(self._turns, self._running, strict=True):
            while not turn.acquire(timeout=_PATIENCE_S):
                raise AssertionError("a worker hangs")
            if running.done():
                running.result()
        try:
            for actor in self._actors:
                actor.writer.flush(timeout_s=_PATIENCE_S)
            audit()
        finally:
            for turn in self._turns:
                turn.release()

    def _audit_counts(self) -> None:
        """Check that each acknowledged row was inserted once, and nothing else."""
        inserted = sum(shard.describe().inserted for shard in self._table.shards.values())
        acknowledged = sum(actor.writer.acknowledged for actor in self._actors)
        assert acknowledged == sum(actor.appended for actor in self._actors)
        assert inserted == acknowledged, f"{inserted} rows inserted, {acknowledged} acknowledged"
        self.figures.audits += 1
        self._count_repeats()

    def _count_repeats(self) -> None:
        """Count repeated inserts, which a server counts from its start."""
        addresses = sorted(server.address for server in self._servers)
        for address, shard in zip(addresses, self._table.shards.values(), strict=True):
            repeats = shard.stats().repeated_inserts
            self.figures.repeated += repeats - self._repeats.get(address, 0)
            self._repeats[address] = repeats

    def _audit_rows(self) -> None:
        """Check the numbers of all rows, and the priorities that the learner has set."""
        self._settle_priorities()
        parts = [
            global_keys(shard_id, np.arange(shard.describe().inserted))
            for shard_id, shard in self._table.shards.items()
        ]
        keys = np.concatenate(parts)
        rows = self._table.read(keys)
        expected = np.concatenate([actor.numbers() for actor in self._actors])
        assert (np.sort(rows["number"]) == expected).all(), "rows are lost or doubled"
        found = dict(zip(rows.row_keys.tolist(), rows.priorities.tolist(), strict=True))
        wrong = {key: (found[key], last) for key, last in self._learner.last.items() if found[key] != last}
        assert not wrong, f"{len(wrong)} priorities are not those set last"

    def _settle_priorities(self) -> None:
        """Draw until all servers are back and have the updates that were held for them."""
        deadline = time.monotonic() + _PATIENCE_S
        sampler = self._learner.sampler
        while sampler.shards_away:
            assert time.monotonic() < deadline, "a server does not come back"
            next(sampler)
        sampler.flush()
        assert sampler.stale == 0

    def _note_figures(self) -> None:
        figures = self.figures
        figures.rows = sum(actor.writer.acknowledged for actor in self._actors)
        figures.batches, figures.priorities = self._learner.batches, self._learner.updates


def tortured(kills: int, seed: int) -> Figures:
    """Kill servers this often."""
    with tempfile.TemporaryDirectory(prefix="torture-") as name:
        folder = Path(name)
        servers = [
            ServerProcess(folder / f"log-{number}", "--data-dir", str(folder / f"data-{number}"))
            for number in range(SHARDS)
        ]
        try:
            torture = ShardTorture(servers, seed)
            bar = track(range(kills), description="killing")
            for done in bar:
                if torture.figures.kills <= done:
                    torture.round()
            torture.close()
        finally:
            for server in servers:
                server.kill()
    return torture.figures


def main(
    *,
    kills: PositiveInt = 100,
    seed: int = 0,
    report: Annotated[Path | None, Parameter(validator=document_with("torture-shards"))] = None,
) -> None:
    """Torture three servers with one table, and report.

    Args:
        kills: how often to kill a server.
        seed: chooses moments and servers.
        report: document whose section on torture of several servers is written again.
    """
    lines = list(tortured(kills, seed).lines())
    for what, figure in lines:
        print(f"{figure:>12}  {what}")
    if report is not None:
        write_section(report, "torture-shards", ("", "three servers"), lines)


if __name__ == "__main__":
    run_app(new_app("python -m tools.faults.shard_torture", __doc__, main))
