"""The positions of drawn windows: the key of each, and which hold steps.

Most learners need neither, so both are computed on demand. Everything here can be pickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from replay_proto.steps import Item, Sequences
from replay_proto.v1 import replay_pb2

from replay_client.errors import InvalidArgumentError

NO_ROW: Final = -1
"""Stands for the key of a position without a row: before or after the episode."""


class Positions(Protocol):
    """The positions of the windows of a batch."""

    @property
    def is_ragged(self) -> bool:
        """Whether the columns of the batch have only the positions with a row."""

    def keys(self) -> NDArray[np.int64]:
        """Return int64[batch, positions]: the key of each position, or `NO_ROW`."""

    def learned(self) -> NDArray[np.bool_]:
        """Return bool[batch, length]: which positions from the anchor on hold a step. The closing row is none."""


@dataclass(frozen=True)
class WindowPositions:
    """The positions of the windows in a reply."""

    message: replay_pb2.Batch
    item: Item

    @property
    def is_ragged(self) -> bool:
        """See `Positions`."""
        return isinstance(self.item, Sequences) and not self.item.padded

    def keys(self) -> NDArray[np.int64]:
        """See `Positions`."""
        item = self.item
        first, stop = (-item.burn_in, item.length) if isinstance(item, Sequences) else (0, item.n_step + 1)
        offsets = np.arange(first, stop)
        keys, (before, after) = np.frombuffer(self.message.window_keys, "<i8"), self._lengths()
        anchors = (before + after + 1).cumsum(dtype=np.int64) - 1 - after
        has_row = (offsets >= -before[:, None]) & (offsets <= after[:, None])
        return np.where(has_row, keys.take(anchors[:, None] + offsets, mode="clip"), NO_ROW)

    def learned(self) -> NDArray[np.bool_]:
        """See `Positions`."""
        length = self.item.length if isinstance(self.item, Sequences) else 1
        is_closed = np.frombuffer(self.message.ends, "u1") != replay_pb2.EPISODE_END_UNSPECIFIED
        last_step = self._lengths()[1] - is_closed
        learned: NDArray[np.bool_] = np.arange(length) <= last_step[:, None]
        return learned

    def _lengths(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the rows before and after each anchor, int32[batch] each."""
        return np.frombuffer(self.message.before, "<i4"), np.frombuffer(self.message.after, "<i4")


@dataclass(frozen=True)
class PartOfPositions:
    """The positions of some windows of a batch, or of one of several batches."""

    whole: Positions
    rows: slice | int

    @property
    def is_ragged(self) -> bool:
        """See `Positions`."""
        return self.whole.is_ragged

    def keys(self) -> NDArray[np.int64]:
        """See `Positions`."""
        return self.whole.keys()[self.rows]

    def learned(self) -> NDArray[np.bool_]:
        """See `Positions`."""
        return self.whole.learned()[self.rows]


class LostPositions:
    """Stands for positions that no longer belong to the rows of a batch, because these may be in another order."""

    is_ragged = False

    def keys(self) -> NDArray[np.int64]:
        """Raise `InvalidArgumentError`."""
        raise InvalidArgumentError.of_field("batch", "the batch as it was drawn", "one that JAX has put together")

    def learned(self) -> NDArray[np.bool_]:
        """Raise `InvalidArgumentError`."""
        raise InvalidArgumentError.of_field("batch", "the batch as it was drawn", "one that JAX has put together")


def offsets_of(positions: Positions) -> NDArray[np.int64]:
    """Return int64[batch + 1]: where the positions of each sequence begin and end, if only those with a row count."""
    counts = (positions.keys() != NO_ROW).sum(axis=1)
    return np.concatenate([[0], np.cumsum(counts)])


def part_of(positions: Positions | None, rows: slice | int) -> Positions | None:
    """Return the positions of some windows. None stands for a table without windows."""
    return None if positions is None else PartOfPositions(positions, rows)
