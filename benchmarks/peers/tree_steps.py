"""Measures the checkout that comes first on the module path, for `benchmarks.paired`.

It prints the names of its contestants as a line of JSON. Then, for each input line ``[name, seconds]``, it measures a
window and prints microseconds per step, insert, row or start.
"""

import dataclasses
import inspect
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
from replay_client import ReplayClient, Table

from benchmarks.learner_step import PREFETCHES, sampler_steps, single_call_steps
from benchmarks.service import full_table, running_server
from benchmarks.workloads import WORKLOADS, Workload

WARM_UP_S = 0.2
SETTLE_S = 0.15
"""Steps before each window. Linux often wakes client and server on one core, and needs about 50 ms to part them again;
steps take twice as long until then."""


INSERTED_ROWS = 256


def inserts(table: Table, workload: Workload) -> Callable[[float], float]:
    """Return a function that inserts rows for a number of seconds, and returns microseconds per insert."""
    rows = workload.rows(INSERTED_ROWS, np.random.default_rng(0))

    def window(seconds: float) -> float:
        began_s, count = time.perf_counter(), 0
        while time.perf_counter() - began_s < seconds:
            table.insert(rows)
            count += 1
        return 1e6 * (time.perf_counter() - began_s) / count

    return window


def appended_rows(table: Table, workload: Workload) -> Callable[[float], float]:
    """Return a function that writes row by row for a number of seconds, and returns microseconds per row."""
    rows = workload.rows(INSERTED_ROWS, np.random.default_rng(0))
    each = [{name: column[row] for name, column in rows.items()} for row in range(INSERTED_ROWS)]

    def window(seconds: float) -> float:
        with table.writer() as writer:
            began_s, count = time.perf_counter(), 0
            while time.perf_counter() - began_s < seconds:
                for row in each:
                    writer.append(row)
                count += len(each)
            writer.flush()
            return 1e6 * (time.perf_counter() - began_s) / count

    return window


def starts(stack: ExitStack, workload: Workload) -> Callable[[float], float]:
    """Return a function that starts a server with a full table, and returns the microseconds until it is ready."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
    with running_server("--data-dir", folder) as (address, _), ReplayClient(address) as client:
        full_table(client, workload)

    def window(_: float) -> float:
        began_s = time.perf_counter()
        with running_server("--data-dir", folder):
            return 1e6 * (time.perf_counter() - began_s)

    return window


def main() -> None:
    """Measure windows until the input ends."""
    workload = dataclasses.replace(WORKLOADS[sys.argv[1]], capacity=int(sys.argv[2]))
    # Versions up to 0.1 had a second transport besides gRPC.
    only_grpc = {
        name: False for name in ("same_host", "frame_port") if name in inspect.signature(ReplayClient).parameters
    }
    with ExitStack() as stack:
        address, _ = stack.enter_context(running_server())
        near = stack.enter_context(ReplayClient(address))
        far = stack.enter_context(ReplayClient(address, **only_grpc))
        full_table(near, workload)
        table, over_grpc = near.table(workload.name), far.table(workload.name)
        contestants = {f"sampler, prefetch {each}": sampler_steps(table, workload, each) for each in PREFETCHES}
        contestants["single calls"] = single_call_steps(table, workload)
        contestants["sampler, prefetch 3, over gRPC"] = sampler_steps(over_grpc, workload, 3)
        contestants[f"insert of {INSERTED_ROWS} rows"] = inserts(table, workload)
        contestants[f"insert of {INSERTED_ROWS} rows, over gRPC"] = inserts(over_grpc, workload)
        contestants["writer, row by row"] = appended_rows(table, workload)
        contestants["start of a server with the table"] = starts(stack, workload)
        for window in contestants.values():
            window(WARM_UP_S)
        print(json.dumps(list(contestants)), flush=True)
        for line in sys.stdin:
            name, window_s = json.loads(line)
            if not name.startswith("start"):
                contestants[name](SETTLE_S)
            print(contestants[name](window_s), flush=True)


if __name__ == "__main__":
    main()
