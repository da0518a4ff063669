"""Episodes whose rows follow from numbers, so that every process knows them without being told."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
from replay_client import Column, Derived, Discount, ReplayClient, Return, Stack, WriterStream

from tests.client.steps.planned_episodes import TERMINATED, TRUNCATED, PlannedEpisode

COLUMNS: dict[str, Column | Derived] = {
    "x": Column("int64"),
    "reward": Column("float32", sampled=False),
    "stack": Stack("x", 3, "zero"),
    "next": Stack("x", 2, ahead=True),
    "n_return": Return("reward"),
    "discount": Discount(),
}
PER_ACTOR, PER_EPISODE = 10**9, 100


def episode_of(actor: int, number: int) -> PlannedEpisode:
    """An episode of 1 to 7 steps; no two rows of any episodes are equal."""
    rows = 2 + (5 * number + actor) % 7
    first = PER_ACTOR * actor + PER_EPISODE * number + 1
    x = np.arange(first, first + rows)
    return PlannedEpisode(
        {"x": x, "reward": (x % 9).astype(np.float32)}, TERMINATED if (number + actor) % 2 else TRUNCATED
    )


def play(stream: WriterStream, actor: int) -> Iterator[None]:
    """Write an actor's episodes for ever, one row at a time."""
    for number in count():
        episode = episode_of(actor, number)
        for step in range(episode.steps):
            stream.append(episode.row(step))
            yield
        stream.end_episode(episode.row(episode.steps), terminated=episode.end == TERMINATED)
        yield


def play_in_process(address: str, table: str, actor: int) -> None:
    """Write an actor's episodes in blocks of one row, until this process is killed."""
    with ReplayClient(address) as client, client[table].writer(block_rows=1) as writer:
        for _ in play(writer[0], actor):
            writer.flush()
