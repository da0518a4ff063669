"""Reverb, whose C++ server runs in a second process. The learner reads through a prefetching dataset, the fastest path.

    reverb_peer.py WORKLOAD PORT transitions|steps

Rows are stored as whole transitions or as steps. With steps, each frame is stored once. Items refer to stacks of
frames, and share the chunks that contain these frames.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import reverb
import tensorflow as tf
from windows import EPISODE, STACK, WORKLOADS, PeerWorkload, serve_windows

_DATASETS = ((-1, 2), (1, 4), (2, 4), (4, 4), (8, 1))
"""Workers per iterator (-1: chosen by Reverb), and batches in flight per worker; the fastest setting is measured."""
_CHUNK_LENGTHS = (1, 2, 5)
"""Frames per chunk; the fastest setting is measured. Reverb sends whole chunks: with 10, a step takes twice as long."""
_TRIALS = 3
"""Trials per setting. The fastest counts, because other load can only slow a trial down."""
_TRIAL_STEPS = 100
_ROWS_PER_FLUSH = 50


@dataclass(frozen=True)
class Storage:
    """A way to store a workload."""

    signature: Callable[[PeerWorkload], Any]
    """Types and shapes of an item."""
    fill: Callable[[reverb.Client, PeerWorkload, int], float]
    """Fills the table for a chunk length, and returns microseconds per row."""
    chunk_lengths: tuple[int, ...]
    """Chunk lengths to try, each with its own table."""


def transition_signature(workload: PeerWorkload) -> Any:
    """Return the types and shapes of a transition."""
    obs = tf.TensorSpec((workload.obs_size,), workload.obs_dtype)
    return (obs, tf.TensorSpec((), tf.int64), tf.TensorSpec((), tf.float32), obs, tf.TensorSpec((), tf.bool))


def fill_transitions(client: reverb.Client, workload: PeerWorkload, chunk_length: int) -> float:
    """Insert transitions one by one; return microseconds per row."""
    rows = np.random.default_rng(0).integers(0, 255, (4096, workload.obs_size)).astype(workload.obs_dtype)
    began = time.perf_counter()
    with client.trajectory_writer(num_keep_alive_refs=1) as writer:
        for i in range(workload.filled):
            writer.append((rows[i % 4095], np.int64(0), np.float32(0), rows[i % 4095 + 1], np.bool_(False)))
            trajectory = tuple(column[-1] for column in writer.history)
            writer.create_item(table_name(chunk_length), 1.0, trajectory=trajectory)
            if i % _ROWS_PER_FLUSH == _ROWS_PER_FLUSH - 1:
                writer.flush(20)
        writer.flush()
    return (time.perf_counter() - began) / workload.filled * 1e6


def step_signature(workload: PeerWorkload) -> Any:
    """Return the types and shapes of a step with its stack of frames and the next stack."""
    stack = tf.TensorSpec((STACK, workload.obs_size // STACK), workload.obs_dtype)
    return {
        "obs": stack,
        "next_obs": stack,
        "action": tf.TensorSpec((), tf.int64),
        "reward": tf.TensorSpec((), tf.float32),
        "done": tf.TensorSpec((), tf.bool),
    }


def fill_steps(client: reverb.Client, workload: PeerWorkload, chunk_length: int) -> float:
    """Insert steps one by one, and an item for each step that has both of its stacks; return microseconds per step."""
    frames = np.random.default_rng(0).integers(0, 255, (4096, workload.obs_size // STACK)).astype(workload.obs_dtype)
    rest = {"action": np.int64(0), "reward": np.float32(0), "done": np.bool_(False)}
    began = time.perf_counter()
    with client.trajectory_writer(num_keep_alive_refs=STACK + 1) as writer:
        writer.configure(("frame",), num_keep_alive_refs=STACK + 1, max_chunk_length=chunk_length)
        for i in range(workload.filled):
            if i % EPISODE == 0:
                writer.end_episode()
            writer.append({"frame": frames[i % 4096], **rest})
            if i % EPISODE >= STACK:
                history = writer.history
                stacks = {"obs": history["frame"][-STACK - 1 : -1], "next_obs": history["frame"][-STACK:]}
                step = {name: history[name][-2] for name in rest}
                writer.create_item(table_name(chunk_length), 1.0, trajectory=stacks | step)
            if i % _ROWS_PER_FLUSH == _ROWS_PER_FLUSH - 1:
                writer.flush(20)
        writer.flush()
    return (time.perf_counter() - began) / workload.filled * 1e6


STORAGES = {
    "transitions": Storage(transition_signature, fill_transitions, chunk_lengths=(1,)),
    "steps": Storage(step_signature, fill_steps, chunk_lengths=_CHUNK_LENGTHS),
}


def table_name(chunk_length: int) -> str:
    """Return the name of the table whose chunks have this length."""
    return f"chunks of {chunk_length}"


def serve(storage: Storage, workload: PeerWorkload, port: int) -> None:
    """Run the server until it is killed."""
    tables = [
        reverb.Table(
            table_name(chunk_length),
            sampler=reverb.selectors.Prioritized(0.6),
            remover=reverb.selectors.Fifo(),
            max_size=workload.capacity,
            rate_limiter=reverb.rate_limiters.MinSize(1),
            signature=storage.signature(workload),
        )
        for chunk_length in storage.chunk_lengths
    ]
    reverb.Server(port=port, tables=tables).wait()


class Steps:
    """Learner steps under one setting of the dataset."""

    def __init__(
        self, client: reverb.Client, address: str, table: str, batch_size: int, workers: int, in_flight: int
    ) -> None:
        """Open the dataset."""
        self._client, self._table = client, table
        dataset = reverb.TrajectoryDataset.from_table_signature(
            address, table, max_in_flight_samples_per_worker=in_flight * batch_size, num_workers_per_iterator=workers
        )
        self._batches = iter(dataset.batch(batch_size).prefetch(2))

    def __call__(self) -> None:
        """Take one step."""
        keys = next(self._batches).info.key.numpy()
        self._client.mutate_priorities(self._table, updates={int(key): 1.3 for key in keys})

    def trial_s(self) -> float:
        """Return the duration of `_TRIAL_STEPS` steps in seconds, in the fastest of several trials."""
        for _ in range(10):
            self()
        times = []
        for _ in range(_TRIALS):
            began = time.perf_counter()
            for _ in range(_TRIAL_STEPS):
                self()
            times.append(time.perf_counter() - began)
        return min(times)


def main() -> None:
    """Start a server, fill its tables, choose the best setting, then measure steps."""
    workload, port, storage = WORKLOADS[sys.argv[1]], int(sys.argv[2]), STORAGES[sys.argv[3]]
    if sys.argv[4:] == ["serve"]:
        serve(storage, workload, port)
    with subprocess.Popen([sys.executable, __file__, *sys.argv[1:4], "serve"], stderr=subprocess.DEVNULL) as server:
        try:
            address = f"localhost:{port}"
            client = reverb.Client(address)
            client.server_info(timeout=60)
            insert_us = {length: storage.fill(client, workload, length) for length in storage.chunk_lengths}

            def steps(chunk_length: int, dataset: tuple[int, int]) -> Steps:
                return Steps(client, address, table_name(chunk_length), workload.batch_size, *dataset)

            settings = [(length, dataset) for length in storage.chunk_lengths for dataset in _DATASETS]
            trials = [(steps(*setting).trial_s(), setting) for setting in settings]
            length, dataset = min(trials)[1]
            workers, in_flight = dataset
            facts = {"insert_us": insert_us[length], "chunk_length": length, "workers": workers, "in_flight": in_flight}
            serve_windows(steps(length, dataset), facts)
        finally:
            server.kill()


if __name__ == "__main__":
    main()
