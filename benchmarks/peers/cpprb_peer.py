"""cpprb: a segment tree in C++, in the learner's own process."""

from __future__ import annotations

import sys
import time

import numpy as np
from cpprb import PrioritizedReplayBuffer
from windows import WORKLOADS, serve_windows

_FILL_ROWS = 4096
_INSERTS = 20_000


def main() -> None:
    """Fill the buffer, time inserts, then measure steps."""
    workload = WORKLOADS[sys.argv[1]]
    rng = np.random.default_rng(0)
    obs = {"shape": (workload.obs_size,), "dtype": workload.obs_dtype}
    buffer = PrioritizedReplayBuffer(
        workload.capacity,
        {"obs": obs, "action": {"dtype": np.int64}, "reward": {}, "next_obs": obs, "terminated": {"dtype": bool}},
        alpha=0.6,
    )
    rows = rng.integers(0, 255, (_FILL_ROWS, workload.obs_size)).astype(workload.obs_dtype)
    zeros = np.zeros(_FILL_ROWS)
    for _ in range(workload.capacity // _FILL_ROWS):
        buffer.add(obs=rows, action=zeros, reward=zeros, next_obs=rows, terminated=zeros)
    began = time.perf_counter()
    for i in range(_INSERTS):
        j = i % (_FILL_ROWS - 1)
        buffer.add(obs=rows[j], action=0, reward=0.0, next_obs=rows[j + 1], terminated=False)
    insert_us = (time.perf_counter() - began) / _INSERTS * 1e6

    def step() -> None:
        batch = buffer.sample(workload.batch_size, 0.4)
        buffer.update_priorities(batch["indexes"], rng.random(workload.batch_size) + 0.1)

    serve_windows(step, {"insert_us": insert_us})


if __name__ == "__main__":
    main()
