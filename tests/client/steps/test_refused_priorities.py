"""Priorities of steps that are refused while the server is away: the writer is as it was before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from replay_client import Column, ReplayClient, ServerUnavailableError, Transitions, Writer

from tests.support.server_process import ServerProcess

STREAMS = 2


def everywhere(step: int) -> dict[str, list[int]]:
    return {"x": [step] * STREAMS}


def append_all(writer: Writer, priority: float | None) -> None:
    given = None if priority is None else [priority] * STREAMS
    writer.append_all(everywhere(4), priorities=given, steps_ago=0 if given is None else 2)


def some_with_priorities(writer: Writer, priority: float | None) -> None:
    """A block has windows with priorities or windows without, so the rows need two blocks."""
    given = None if priority is None else [np.nan, priority]
    writer.append_all(everywhere(4), priorities=given, steps_ago=0 if given is None else 2)


def end_episode(writer: Writer, priority: float | None) -> None:
    given = None if priority is None else [priority, priority]
    for stream in range(STREAMS):
        writer[stream].end_episode(x=4, priorities=given)


@pytest.mark.parametrize("add", [append_all, some_with_priorities, end_episode])
def test_refused_priorities_are_not_those_of_later_rows(
    start_server: Callable[..., ServerProcess], tmp_path: Path, add: Callable[[Writer, float | None], None]
) -> None:
    server = start_server("--data-dir", str(tmp_path / "data"))
    with ReplayClient(server.address) as client:
        table = client.create_table("t", columns={"x": Column("int64")}, steps=Transitions(2), capacity=100)
        with table.writer(
            streams=STREAMS, block_rows=STREAMS, max_blocks_in_flight=1, reconnect_timeout_s=2.0
        ) as writer:
            writer.append_all(everywhere(0), priorities=[5.0] * STREAMS)
            writer.append_all(everywhere(1))
            writer.flush()
            server.kill()
            writer.append_all(everywhere(2))
            writer.append_all(everywhere(3))
            with pytest.raises(ServerUnavailableError):
                add(writer, 7.0)
            server.restart()
            add(writer, None)
        (rows,) = table.rows()
        assert sorted(rows["x"].tolist()) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
        assert rows.priorities[rows["x"] <= 2].tolist() == [5.0] * 6
