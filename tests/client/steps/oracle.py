"""What a table of steps should draw, built row by row from whole episodes, in plain Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from replay_proto.schema import Column
from replay_proto.steps import Derived, Discount, Item, Mask, Return, Sequences, Stack, Transitions

GOES_ON, TRUNCATED, TERMINATED = range(3)
Rows = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Episode:
    """The rows of an episode; the last one closes it, unless it goes on."""

    rows: Rows
    """By stored column, ``dtype[n, *shape]``."""
    end: int
    """An `EpisodeEnd`."""

    def __len__(self) -> int:
        return len(next(iter(self.rows.values())))

    @property
    def steps(self) -> int:
        """Steps, without the closing row."""
        return len(self) - (self.end != GOES_ON)


def reach(item: Item) -> int:
    """Rows of a window beyond its anchor."""
    return item.n_step if isinstance(item, Transitions) else item.length


def anchors(item: Item, episode: Episode) -> Iterator[int]:
    """The steps of an episode that can be drawn while all its rows are live."""
    period = item.period if isinstance(item, Sequences) else 1
    for step in range(0, episode.steps, period):
        if episode.end != GOES_ON or step + reach(item) < len(episode):
            yield step


def drawn(columns: Mapping[str, Column | Derived], item: Item, episode: Episode, anchor: int) -> dict[str, Any]:
    """The values of one item, by column."""
    values = {name: _value(name, column, item, episode, anchor) for name, column in columns.items()}
    return {name: np.asarray(value) for name, value in values.items() if value is not None}


def _value(name: str, column: Column | Derived, item: Item, episode: Episode, anchor: int) -> Any:
    if isinstance(item, Transitions):
        return _transition(name, column, item, episode, anchor)
    return _sequence(name, column, item, episode, anchor)


def _transition(name: str, column: Column | Derived, item: Transitions, episode: Episode, anchor: int) -> Any:
    steps = min(item.n_step, len(episode) - 1 - anchor)
    match column:
        case Column():
            return episode.rows[name][anchor] if column.sampled else None
        case Stack():
            return _stack(column, episode, anchor + steps if column.ahead else anchor)
        case Return():
            rewards = episode.rows[column.of]
            total = np.zeros(rewards.shape[1:], np.float64)
            for step in reversed(range(anchor, anchor + steps)):
                total = rewards[step].astype(np.float64) + item.gamma * total
            return total.astype(rewards.dtype)
        case Discount():
            is_over = episode.end == TERMINATED and anchor + steps == len(episode) - 1
            return np.float32(0.0 if is_over else item.gamma**steps)
        case Mask():
            raise AssertionError("transitions have no mask")


def _sequence(name: str, column: Column | Derived, item: Sequences, episode: Episode, anchor: int) -> Any:
    steps = [anchor - item.burn_in + place for place in range(item.burn_in + item.length)]
    match column:
        case Column(at="start"):
            return episode.rows[name][max(0, steps[0])]
        case Column():
            zero = np.zeros_like(episode.rows[name][0])
            rows = [episode.rows[name][step] if 0 <= step < len(episode) else zero for step in steps]
            return np.stack(rows) if column.sampled else None
        case Stack():
            zero = np.zeros_like(_stack(column, episode, 0))
            return np.stack([_stack(column, episode, step) if 0 <= step < len(episode) else zero for step in steps])
        case Mask():
            return np.array([0 <= step < episode.steps for step in steps])
        case Discount():
            last = episode.steps - 1 if episode.end == TERMINATED else None
            return np.array(
                [item.gamma if 0 <= step < episode.steps and step != last else 0.0 for step in steps], np.float32
            )
        case Return():
            raise AssertionError("sequences have no returns")


def _stack(column: Stack, episode: Episode, step: int) -> NDArray[Any]:
    rows = episode.rows[column.of]
    first = rows[0] if column.padding == "repeat" else np.zeros_like(rows[0])
    values = [rows[each] if each >= 0 else first for each in range(step - column.count + 1, step + 1)]
    return values[0] if column.count == 1 else np.stack(values)
