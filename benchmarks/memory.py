"""Memory that a full table adds to an empty server, and whether it grows during a million learner steps.

python -m benchmarks.memory [--steps 1000000]
"""

from __future__ import annotations

import dataclasses

import numpy as np
import psutil
from replay_client import ReplayClient
from replay_proto.command_line import new_app, run_app
from rich.console import Console

from benchmarks.learner_step import BETA
from benchmarks.report import Section
from benchmarks.service import full_table, running_server
from benchmarks.workloads import CARTPOLE

ROWS = 1_000_000
STEPS = 1_000_000
_STEADY_FROM = 10_000
"""Number of warm-up steps, after which buffers no longer grow and every page has been touched."""
_INSERT_EVERY = 100
_INSERT_ROWS = 256


def resident_bytes(process: psutil.Process) -> int:
    """Return the memory that a process uses, including pages of mapped files."""
    return int(process.memory_info().rss)


def measure_backend(backend: str, steps: int) -> list[str]:
    """Measure one backend, and return its row of the table."""
    workload = dataclasses.replace(CARTPOLE, capacity=ROWS)
    rng = np.random.default_rng(1)
    rows = workload.rows(_INSERT_ROWS, rng)
    with running_server() as (address, pid), ReplayClient(address) as client:
        process = psutil.Process(pid)
        empty = resident_bytes(process)
        table = full_table(client, workload, backend)
        steady = full = resident_bytes(process)
        with table.sampler(workload.batch_size, beta=BETA, prefetch=16) as sampler:
            for step in range(steps):
                batch = next(sampler)
                sampler.update_priorities(batch, rng.random(workload.batch_size) + 0.1)
                if step % _INSERT_EVERY == 0:
                    table.insert(rows)
                if step == _STEADY_FROM:
                    steady = resident_bytes(process)
        end = resident_bytes(process)
    payload = ROWS * workload.row_bytes
    return [
        backend,
        f"{empty / 1e6:.1f}",
        f"{(full - empty) / 1e6:.1f}",
        f"{(full - empty - 1.02 * payload) / ROWS:.1f}",
        f"{(end - empty - 1.02 * payload) / ROWS:.1f}",
        f"{(end - steady) / 1e6:+.2f}",
    ]


def measure(steps: int = STEPS) -> Section:
    """Measure the backends."""
    return Section(
        title=f"Memory of the server: {ROWS:,} rows of {CARTPOLE.row_bytes} bytes",
        command="python -m benchmarks.memory",
        header=[
            "backend",
            "empty server, MB",
            "added by the full table, MB",
            "bytes per row, less 1.02 x payload",
            "after the steps: bytes per row, less 1.02 x payload",
            "growth from step 10,000 to the end, MB",
        ],
        rows=[measure_backend(backend, steps) for backend in ("sum_tree", "rank")],
        notes=[f"{steps:,} learner steps, 16 in flight, with 256 rows inserted every 100 steps."],
    )


def main(*, steps: int = STEPS) -> None:
    """Measure."""
    measure(steps).show(Console(width=140))


if __name__ == "__main__":
    run_app(new_app("python -m benchmarks.memory", __doc__, main))
