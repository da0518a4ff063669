"""What a message, a row and a byte cost a server and a learner, in CPU time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import psutil
from replay_client import ReplayClient
from scipy.optimize import nnls

from benchmarks.fleet import LeanWriter
from benchmarks.learner_step import BETA, touch
from benchmarks.service import full_table, running_server
from benchmarks.workloads import ATARI, CARTPOLE, Workload

_WRITERS: Final = 50
_MESSAGES_PER_S: Final = 500.0
"""The rate that a server asks for. At lower rates, a server is often idle, and then takes more time per message."""
_BLOCKS: Final = (
    (CARTPOLE, 1, 1500),
    (CARTPOLE, 64, 1500),
    (CARTPOLE, 512, 1000),
    (ATARI, 1, 1000),
    (ATARI, 16, 300),
    (ATARI, 48, 100),
)
"""Workload, rows of a block, number of blocks."""
_DRAWS: Final = (
    (CARTPOLE, 64, 1500),
    (CARTPOLE, 256, 1500),
    (CARTPOLE, 1024, 1000),
    (ATARI, 32, 300),
    (ATARI, 128, 100),
    (ATARI, 512, 40),
)
"""Workload, rows of a batch, number of batches."""
_FEWER_ATARI_ROWS: Final = Workload("atari", capacity=1 << 12, batch_size=32, obs=ATARI.obs)


@dataclass(frozen=True)
class Cost:
    """CPU time of a request, which is linear in its rows and bytes."""

    message_us: float
    """CPU time of a message without rows."""
    row_us: float
    """CPU time per row."""
    byte_ns: float
    """CPU time per byte of rows."""

    def seconds(self, rows: float, row_bytes: float, messages: float = 1) -> float:
        """CPU time of messages with this many rows altogether."""
        return messages * self.message_us * 1e-6 + rows * (self.row_us * 1e-6 + row_bytes * self.byte_ns * 1e-9)

    @classmethod
    def fitted(cls, points: Sequence[tuple[int, int, float]]) -> Self:
        """Fit the costs to measured points: tuples of rows per message, bytes per row, and seconds per message.

        The fit minimizes relative errors, because the largest messages would dominate a fit of absolute errors.
        """
        seconds = np.array([point[2] for point in points])
        design = np.array([[1e-6, rows * 1e-6, rows * row_bytes * 1e-9] for rows, row_bytes, _ in points])
        solution, _ = nnls(design / seconds[:, None], np.ones(len(points)))
        return cls(*(round(float(value), 4) for value in solution))


@dataclass(frozen=True)
class Costs:
    """All costs that the formula and the simulation need."""

    machine: str
    """Where the costs were measured."""
    write: Cost
    """Cost of a writer's message in the server."""
    draw: Cost
    """Cost in the server of a learner's message, which draws rows and updates as many priorities."""
    learner: Cost
    """Cost of the same message in the learner, over the network."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file that `save` has written."""
        found = json.loads(path.read_text())
        return cls(found["machine"], *(Cost(**found[name]) for name in ("write", "draw", "learner")))

    def save(self, path: Path) -> None:
        """Write a JSON file."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")


def measure(machine: str) -> Costs:
    """Measure all costs, on one server at a time."""
    write = Cost.fitted([(rows, of.row_bytes, _write_s(of, rows, count)) for of, rows, count in _BLOCKS])
    drawn = [(rows, of.row_bytes, *_draw_s(of, rows, count)) for of, rows, count in _DRAWS]
    draw = Cost.fitted([(rows, row_bytes, server_s) for rows, row_bytes, server_s, _ in drawn])
    learner = Cost.fitted([(rows, row_bytes, client_s) for rows, row_bytes, _, client_s in drawn])
    return Costs(machine, write, draw, learner)


def cpu_s(process_id: int) -> Callable[[], float]:
    """Return a function that returns the CPU time that a process has used."""
    process = psutil.Process(process_id)
    return lambda: sum(process.cpu_times()[:2])


def _table_of(workload: Workload) -> Workload:
    return _FEWER_ATARI_ROWS if workload is ATARI else workload


def _write_s(workload: Workload, rows: int, count: int) -> float:
    """Return the server's CPU time in seconds for a block of ``rows`` rows, the mean of ``count`` blocks."""
    with running_server() as (address, process_id), ReplayClient(address) as client:
        full_table(client, _table_of(workload))
        used = cpu_s(process_id)

        async def write_all() -> float:
            writers = [LeanWriter(address, workload) for _ in range(_WRITERS)]
            await asyncio.gather(*(writer.write(rows) for writer in writers))
            before, each = used(), count // _WRITERS
            await asyncio.gather(*(_write_each(writer, rows, each) for writer in writers))
            spent = used() - before
            for writer in writers:
                await writer.close()
            return spent / (each * _WRITERS)

        return asyncio.run(write_all())


async def _write_each(writer: LeanWriter, rows: int, count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(_WRITERS / _MESSAGES_PER_S)
        await writer.write(rows)


def _draw_s(workload: Workload, rows: int, count: int) -> tuple[float, float]:
    """Return the CPU time in seconds that a step with ``rows`` rows takes in the server and in the learner."""
    rng = np.random.default_rng(1)
    with running_server() as (address, process_id), ReplayClient(address, same_host=False) as client:
        table, used = full_table(client, _table_of(workload)), cpu_s(process_id)
        with table.sampler(rows, beta=BETA, prefetch=2) as sampler:
            for number in range(count + count // 10):
                if number == count // 10:
                    before, own = used(), time.process_time()
                batch = next(sampler)
                touch(batch)
                sampler.update_priorities(batch, rng.random(rows) + 0.1)
            return (used() - before) / count, (time.process_time() - own) / count
