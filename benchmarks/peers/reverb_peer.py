"""Reverb: a server in C++ in a second process, sampled through its dataset with prefetch, its fastest path."""

from __future__ import annotations

import os
import subprocess
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import reverb
import tensorflow as tf
from windows import WORKLOADS, PeerWorkload, serve_windows

_SETTINGS = ((-1, 2), (1, 4), (2, 4), (4, 4), (8, 1))
"""Workers per iterator (-1: chosen by Reverb), and batches in flight per worker; the fastest setting is measured."""
_TRIAL_STEPS = 100
_ROWS_PER_FLUSH = 50


def serve(workload: PeerWorkload, port: int) -> None:
    """Run the server until it is killed."""
    obs = tf.TensorSpec((workload.obs_size,), workload.obs_dtype)
    signature = (obs, tf.TensorSpec((), tf.int64), tf.TensorSpec((), tf.float32), obs, tf.TensorSpec((), tf.bool))
    table = reverb.Table(
        "table",
        sampler=reverb.selectors.Prioritized(0.6),
        remover=reverb.selectors.Fifo(),
        max_size=workload.capacity,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=signature,
    )
    reverb.Server(port=port, tables=[table]).wait()


def fill(client: reverb.Client, workload: PeerWorkload) -> float:
    """Insert row by row; return microseconds per row."""
    rows = np.random.default_rng(0).integers(0, 255, (4096, workload.obs_size)).astype(workload.obs_dtype)
    began = time.perf_counter()
    with client.trajectory_writer(num_keep_alive_refs=1) as writer:
        for i in range(workload.filled):
            writer.append((rows[i % 4095], np.int64(0), np.float32(0), rows[i % 4095 + 1], np.bool_(False)))
            writer.create_item("table", 1.0, trajectory=tuple(column[-1] for column in writer.history))
            if i % _ROWS_PER_FLUSH == _ROWS_PER_FLUSH - 1:
                writer.flush(20)
        writer.flush()
    return (time.perf_counter() - began) / workload.filled * 1e6


class Steps:
    """Learner steps under one setting of the dataset."""

    def __init__(self, client: reverb.Client, address: str, batch_size: int, workers: int, in_flight: int) -> None:
        """Open the dataset."""
        self._client = client
        dataset = reverb.TrajectoryDataset.from_table_signature(
            address, "table", max_in_flight_samples_per_worker=in_flight * batch_size, num_workers_per_iterator=workers
        )
        self._batches = iter(dataset.batch(batch_size).prefetch(2))

    def __call__(self) -> None:
        """Take one step."""
        keys = next(self._batches).info.key.numpy()
        self._client.mutate_priorities("table", updates={int(key): 1.3 for key in keys})

    def trial_s(self) -> float:
        """Duration of some steps in seconds."""
        for _ in range(10):
            self()
        began = time.perf_counter()
        for _ in range(_TRIAL_STEPS):
            self()
        return time.perf_counter() - began


def main() -> None:
    """Start a server, fill it, choose the best setting, then measure steps."""
    workload, port = WORKLOADS[sys.argv[1]], int(sys.argv[2])
    if sys.argv[3:] == ["serve"]:
        serve(workload, port)
    with subprocess.Popen([sys.executable, __file__, *sys.argv[1:3], "serve"], stderr=subprocess.DEVNULL) as server:
        try:
            address = f"localhost:{port}"
            client = reverb.Client(address)
            client.server_info(timeout=60)
            insert_us = fill(client, workload)
            trials = [
                (Steps(client, address, workload.batch_size, *setting).trial_s(), setting) for setting in _SETTINGS
            ]
            best = min(trials)[1]
            serve_windows(Steps(client, address, workload.batch_size, *best), {"insert_us": insert_us})
        finally:
            server.kill()


if __name__ == "__main__":
    main()
