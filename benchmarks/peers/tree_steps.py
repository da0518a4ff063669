"""Measures learner steps of the checkout that comes first on the module path, for `benchmarks.paired`.

It prints the names of its contestants as a line of JSON. Then, for each input line ``[name, seconds]``, it measures a
window and prints microseconds per step.
"""

import dataclasses
import inspect
import json
import sys
from contextlib import ExitStack

from replay_client import ReplayClient

from benchmarks.learner_step import PREFETCHES, sampler_steps, single_call_steps
from benchmarks.service import full_table, running_server
from benchmarks.workloads import WORKLOADS

WARM_UP_S = 0.2
SETTLE_S = 0.15
"""Steps before each window. Linux often wakes client and server on one core, and needs about 50 ms to part them again;
steps take twice as long until then."""


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
        for window in contestants.values():
            window(WARM_UP_S)
        print(json.dumps(list(contestants)), flush=True)
        for line in sys.stdin:
            name, window_s = json.loads(line)
            contestants[name](SETTLE_S)
            print(contestants[name](window_s), flush=True)


if __name__ == "__main__":
    main()
