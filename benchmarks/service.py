"""A server in a separate process, for the duration of a measurement."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from replay_client import ReplayClient, Table

from benchmarks.workloads import Workload

_READY = "replay-server listening on "
_FILL_ROWS = 4096
_STOP_S = 30.0


@contextmanager
def running_server(*flags: str) -> Iterator[tuple[str, int]]:
    """Run a server on a free port until the block ends; yield its address and process id."""
    command = [sys.executable, "-m", "replay_server", "--port", "0", "--log-level", "warning", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith(_READY):
                raise RuntimeError(f"the server did not start: {line!r}")
            yield line.removeprefix(_READY).strip(), process.pid
        finally:
            process.terminate()
            process.wait(_STOP_S)


def full_table(client: ReplayClient, workload: Workload, backend: str = "sum_tree") -> Table:
    """Create a table for a workload, and fill it with rows of random priorities until its ring has wrapped."""
    rng = np.random.default_rng(0)
    table = client.create_table(workload.name, columns=workload.columns, capacity=workload.capacity, backend=backend)
    step = min(_FILL_ROWS, table.slots - table.capacity)
    rows = workload.rows(step, rng)
    for _ in range(0, table.slots + step, step):
        table.insert(rows, priorities=rng.random(step) + 0.1)
    return table
