"""Episodes that tests write, as arrays, and what the oracle says about each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from replay_proto.steps import Item

from tests.client.steps.oracle import Columns, StepsOracle

GOES_ON, TRUNCATED, TERMINATED = range(3)


@dataclass(frozen=True)
class PlannedEpisode:
    """The rows of an episode; the last one closes it, unless it goes on."""

    rows: Mapping[str, NDArray[Any]]
    """By stored column, ``dtype[n, *shape]``."""
    end: int
    """`GOES_ON`, `TRUNCATED` or `TERMINATED`."""

    def __len__(self) -> int:
        return len(next(iter(self.rows.values())))

    @property
    def steps(self) -> int:
        """Steps, without the closing row."""
        return len(self) - (self.end != GOES_ON)

    def row(self, step: int) -> dict[str, Any]:
        """The values of a step, or of the closing row."""
        return {name: values[step] for name, values in self.rows.items()}


def oracle_of(columns: Columns, item: Item, episode: PlannedEpisode) -> StepsOracle:
    """The oracle of a table with this episode alone, whose keys are its steps."""
    oracle = StepsOracle(columns, item)
    for step in range(episode.steps):
        oracle.append(0, episode.row(step))
    if episode.end != GOES_ON:
        oracle.end_episode(0, episode.row(episode.steps), terminated=episode.end == TERMINATED)
    return oracle


def anchors(columns: Columns, item: Item, episode: PlannedEpisode) -> list[int]:
    """The steps of an episode that can be drawn while all its rows are live."""
    return sorted(oracle_of(columns, item, episode).drawable())


def drawn(columns: Columns, item: Item, episode: PlannedEpisode, anchor: int) -> dict[str, NDArray[Any]]:
    """The values of one item, by column."""
    oracle = oracle_of(columns, item, episode)
    return oracle.item(oracle.rows[anchor])
