"""Runs of inserted rows, as messages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from replay_proto.v1 import replay_pb2

from tests.support.step_oracle import Run, runs_of


def one_run(rows: int, stream: int, episode: int) -> replay_pb2.Runs:
    """Rows of one episode."""
    return replay_pb2.Runs(
        row_counts=np.array([rows], "<i8").tobytes(),
        streams=np.array([stream], "<u8").tobytes(),
        episodes=np.array([episode], "<u8").tobytes(),
    )


def step_runs(runs: Sequence[Run]) -> replay_pb2.Runs:
    """Steps of episodes."""
    arrays = runs_of(*runs)
    assert arrays.first_steps is not None
    assert arrays.ends is not None
    return replay_pb2.Runs(
        row_counts=arrays.row_counts.tobytes(),
        streams=arrays.streams.tobytes(),
        episodes=arrays.episodes.tobytes(),
        first_steps=arrays.first_steps.tobytes(),
        ends=arrays.ends.tobytes(),
    )
