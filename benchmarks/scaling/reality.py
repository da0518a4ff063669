"""Measures what the simulation predicts, as far as this machine can: one server, many writers, one learner."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from replay_client import ReplayClient, Table

from benchmarks.fleet import ROWS_PER_S, fleet
from benchmarks.learner_step import BETA, touch
from benchmarks.scaling.costs import Costs, cpu_s
from benchmarks.scaling.simulation import Simulation
from benchmarks.scaling.sizing import MACHINE, Fleet
from benchmarks.service import full_table, running_server
from benchmarks.workloads import CARTPOLE

WRITERS: Final = (50, 100, 200, 400)
STEPS_PER_S: Final = 50.0
_WINDOW_S: Final = 8.0
_SETTLE_S: Final = 2.0


@dataclass(frozen=True)
class Measured:
    """What was measured on one server."""

    writers: int
    """Writers of 35 rows per second each, next to a learner of 50 steps per second."""
    messages_per_s: float
    """Messages of all writers."""
    steps_per_s: float
    """Steps of the learner."""
    core: float
    """Share of a core that the server used."""


def measure() -> list[Measured]:
    """Measure all numbers of writers on one server."""
    with (
        running_server("--max-connections", "1000") as (address, process_id),
        ReplayClient(address, same_host=False) as client,
    ):
        table = full_table(client, CARTPOLE)
        return [_measure(address, process_id, table, count) for count in WRITERS]


def load(path: Path) -> list[Measured]:
    """Read a file of measurements."""
    return [Measured(**each) for each in json.loads(path.read_text())]


def simulated_core(costs: Costs, measured: Measured) -> float:
    """Simulate the same fleet at the measured message rate; return the server's share of its core."""
    of = Fleet(
        measured.writers,
        measured.writers * ROWS_PER_S,
        1,
        measured.steps_per_s,
        CARTPOLE.batch_size,
        CARTPOLE.row_bytes,
        CARTPOLE.capacity,
    )
    delay = measured.writers / measured.messages_per_s
    return Simulation(of, costs, MACHINE, 1, delay).run(_WINDOW_S).core


def _measure(address: str, process_id: int, table: Table, count: int) -> Measured:
    used, ended, steps = cpu_s(process_id), threading.Event(), [0]
    learner = threading.Thread(target=_learn, args=(table, ended, steps))
    with ReplayClient(address) as asking, fleet(address, count):

        def counts() -> tuple[float, float, int, float]:
            return used(), asking.stats().server.methods["Write"].calls, steps[0], time.monotonic()

        while "Write" not in asking.stats().server.methods:
            time.sleep(0.1)
        learner.start()
        time.sleep(_SETTLE_S)
        before = counts()
        time.sleep(_WINDOW_S)
        core, messages, learned, elapsed = (now - then for now, then in zip(counts(), before, strict=True))
    ended.set()
    learner.join()
    return Measured(count, *(round(each / elapsed, 3) for each in (messages, learned, core)))


def _learn(table: Table, ended: threading.Event, steps: list[int]) -> None:
    rng, due = np.random.default_rng(1), time.monotonic()
    with table.sampler(CARTPOLE.batch_size, beta=BETA, prefetch=2) as sampler:
        while not ended.wait(max(0.0, due - time.monotonic())):
            batch = next(sampler)
            touch(batch)
            sampler.update_priorities(batch, rng.random(CARTPOLE.batch_size) + 0.1)
            steps[0] += 1
            due += 1 / STEPS_PER_S
