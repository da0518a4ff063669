"""Clients of a server over a bad network: the library's writers, inserts and samplers, and an audit of every row.

    python -m tools.faults.network_load 10.99.0.1:50051 < a pipe

Loads the server until standard input ends, then compares the table with what was sent and acknowledged, and prints
statistics as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from replay_client import ReplayClient, Table

from tests.client.conftest import COLUMNS
from tests.client.numbered import assert_whole, rows
from tests.support.deadlines import wait_until

VALUES_PER_WRITER = 10**9
"""Row n of writer w has the number ``w * VALUES_PER_WRITER + n``."""
CAPACITIES = {"large": 1_000_000, "small": 1000}
"""A table that keeps most rows, and one whose rows are constantly overwritten."""
PATIENCE_S = 120.0
LEAST = 1_000
"""Minimum rows, batches, and priorities in the large table before an audit; slow machines take longer."""
_BATCH = 32
_LEARNERS = 2
_READ_AT_ONCE = 100_000


@dataclass
class NetworkFigures:
    """Result of a run."""

    rows: int = 0
    """Acknowledged."""
    priorities: int = 0
    """Acknowledged."""
    batches: int = 0
    """Drawn."""
    rows_audited: int = 0
    """Read and compared at the end."""
    priorities_audited: int = 0
    """Rows, of these, whose priority a learner had set."""
    longest_pause_s: float = 0.0
    """Longest time between two steps of one client."""
    repeated_inserts: int = 0
    """Inserts that had been applied before the connection broke; their retries were not applied again."""


class Paced:
    """Measures the longest step."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._last_s = time.monotonic()

    def step(self) -> None:
        now = time.monotonic()
        self.longest_s = max(self.longest_s, now - self._last_s)
        self._last_s = now


class Load:
    """A writer, a caller of insert, and two learners of one table."""

    def __init__(self, table: Table, stop: threading.Event) -> None:
        self.table = table
        self.stop = stop
        self.sent: Counter[int] = Counter()
        """Rows by writer, all acknowledged at the end."""
        self.set_to: list[dict[int, float]] = [{} for _ in range(_LEARNERS)]
        """Priority last set, by key and learner."""
        self.paces: list[Paced] = []
        self.batches: Counter[int] = Counter()
        """Drawn, by learner."""

    def begin(self, threads: ThreadPoolExecutor) -> Iterator[Future[None]]:
        """Start everything; yield a future for each part."""
        yield threads.submit(self._write, 0)
        yield threads.submit(self._insert, 1)
        for learner in range(_LEARNERS):
            yield threads.submit(self._learn, learner)

    def _paced(self) -> Paced:
        self.paces.append(Paced())
        return self.paces[-1]

    def _write(self, writer: int) -> None:
        pace = self._paced()
        with self.table.writer(block_rows=16, max_delay_s=0.01, reconnect_timeout_s=PATIENCE_S) as stream:
            while not self.stop.is_set():
                (number,) = self._next(writer, 1)
                stream.append(
                    {name: column[0] for name, column in rows([number]).items()}, priority=float(first_priority(number))
                )
                pace.step()
                if self.sent[writer] % 16 == 0:
                    # Leave the machine and the connection to the others for a moment.
                    time.sleep(0.002)

    def _insert(self, writer: int) -> None:
        pace = self._paced()
        while not self.stop.is_set():
            numbers = self._next(writer, 1 + self.sent[writer] % 20)
            self.table.insert(rows(numbers), priorities=first_priority(numbers), timeout_s=PATIENCE_S)
            pace.step()

    def _learn(self, learner: int) -> None:
        pace, random = self._paced(), np.random.default_rng(learner)
        with self.table.sampler(_BATCH, beta=0.4, timeout_s=PATIENCE_S, reconnect_timeout_s=PATIENCE_S) as sampler:
            for batch in sampler:
                assert_whole(batch.columns)
                mine = batch.row_keys[batch.row_keys % _LEARNERS == learner]
                priorities = random.exponential(size=len(mine))
                sampler.update_priorities(mine, priorities)
                self.set_to[learner].update(zip(mine.tolist(), priorities.tolist(), strict=True))
                pace.step()
                self.batches[learner] += 1
                if self.stop.is_set():
                    return sampler.flush(timeout_s=PATIENCE_S)
        raise AssertionError("a sampler has no end")

    def _next(self, writer: int, count: int) -> NDArray[np.int64]:
        numbers = writer * VALUES_PER_WRITER + self.sent[writer] + np.arange(count)
        self.sent[writer] += count
        return numbers

    def audit(self, figures: NetworkFigures) -> None:
        """Check that every row exists once, intact, in its writer's order, with its last priority.

        Raises:
            AssertionError: a check failed.
        """
        description = self.table.describe()
        total = sum(self.sent.values())
        assert description.inserted == total, f"{description.inserted} rows inserted, {total} acknowledged"
        live = range(total - description.size, total)
        assert len(live) == min(total, description.capacity)
        seen = dict(self.sent)
        # Newest first: each writer's rows count down from its last one.
        for stop in range(live.stop, live.start, -_READ_AT_ONCE):
            keys = np.arange(max(live.start, stop - _READ_AT_ONCE), stop)
            found = self.table.read(keys)
            np.testing.assert_array_equal(found.row_keys, keys)
            assert_whole(found.columns)
            for writer in seen:
                own = found["number"][found["number"] // VALUES_PER_WRITER == writer] % VALUES_PER_WRITER
                np.testing.assert_array_equal(own, np.arange(seen[writer] - len(own), seen[writer]))
                seen[writer] -= len(own)
            expected = first_priority(found["number"])
            for index, key in enumerate(keys.tolist()):
                set_to = self.set_to[key % _LEARNERS].get(key)
                if set_to is not None:
                    expected[index] = set_to
                    figures.priorities_audited += 1
            np.testing.assert_array_equal(found.priorities, expected)
            figures.rows_audited += len(keys)
        if len(live) == total:
            assert not any(seen.values()), f"the first rows of writers are not there: {seen}"
        figures.rows += total
        figures.repeated_inserts += self.table.stats().repeated_inserts


def first_priority(numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Initial priorities of rows."""
    return 1.0 + (numbers % 97).astype(np.float64)


def run(address: str, until: Callable[[], object]) -> NetworkFigures:
    """Load a server until ``until`` returns, then audit."""
    figures, stop = NetworkFigures(), threading.Event()
    with ReplayClient(address, timeout_s=PATIENCE_S, wait_for_server_s=PATIENCE_S) as client:
        loads: Sequence[Load] = [
            Load(client.create_table(name, columns=COLUMNS, capacity=capacity), stop)
            for name, capacity in CAPACITIES.items()
        ]
        with ThreadPoolExecutor(16) as threads:
            begun = [each for load in loads for each in load.begin(threads)]
            try:
                until()
                wait_until(
                    lambda: _is_enough(loads) or any(each.done() for each in begun),  # one that ended has failed
                    "there is enough to audit",
                    PATIENCE_S,
                )
            finally:
                stop.set()
            for each in begun:
                each.result()
        for load in loads:
            load.audit(figures)
            figures.priorities += sum(map(len, load.set_to))
            figures.batches += load.batches.total()
            figures.longest_pause_s = max(figures.longest_pause_s, *(pace.longest_s for pace in load.paces))
    return figures


def _is_enough(loads: Sequence[Load]) -> bool:
    rows_sent = sum(load.sent.total() for load in loads)
    batches = sum(load.batches.total() for load in loads)
    priorities_kept = sum(map(len, loads[0].set_to))
    return min(rows_sent, batches, priorities_kept) > LEAST


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(run(sys.argv[1], sys.stdin.read))))
