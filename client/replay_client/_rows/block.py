"""A block of rows from several streams of experience, added one by one and sent together.

    block = RowBlock(schema, capacity=1024, streams=numbers)
    block.add({"obs": obs, "action": 1}, stream=0)              # copies the row
    block.begin_run(stream=0, row=0, episode=0, step=5)         # that row is step 5; later rows are steps 6, 7, ...
    parts = block.message(head)                                 # the serialized message, in parts
    block.clear()

A run is a sequence of rows that are consecutive steps of one episode. The block stores rows in order of arrival, and
`message` sorts them by stream, so that each stream has few runs.

Every step of every actor calls `add`, so it has a fast path: plain numbers, and arrays with exactly the column's dtype
and shape, are stored directly. All other values take the slow path, where `replay_client._rows.checks` checks and casts
them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from replay_proto.frames import Content
from replay_proto.framing import Array, message_start
from replay_proto.schema import DTYPES, Column, Schema
from replay_proto.v1 import replay_pb2

from replay_client._rows.checks import checked_array, checked_row
from replay_client.errors import InvalidArgumentError

_PRIORITY: Final = Column("float64")
_NO_RUN: Final = -1
_SLOW_DTYPES: Final = ("float16", "bfloat16")
"""Dtypes whose values cannot be assigned through a memoryview."""
_LARGEST: Final = float(np.finfo(np.float32).max)
_LOWEST: Final = -_LARGEST
_LONG_BYTES: Final = 256
"""Values of at least this size are copied through a memoryview, which holds the GIL. NumPy would release the GIL,
and then have to wait until the writer's threads release it again."""
_BOOLEANS: Final[frozenset[type]] = frozenset({bool, np.bool_})
_INTEGERS: Final[frozenset[type]] = frozenset({int, bool, *(np.dtype(name).type for name in DTYPES if "int" in name)})
_REALS: Final[frozenset[type]] = frozenset({float, np.float16, np.float32, np.float64}) | _INTEGERS | _BOOLEANS
_TYPES: Final[Mapping[str, frozenset[type]]] = {"b": _BOOLEANS, "i": _INTEGERS, "u": _INTEGERS, "f": _REALS}
"""Types that the fast path accepts, by kind of dtype. memoryview would accept any object with ``__float__``."""


class RowBlock:
    """A buffer for the rows of one insert."""

    def __init__(self, schema: Schema, capacity: int, streams: NDArray[np.uint64], *, of_steps: bool = False) -> None:
        """Allocate an empty block.

        Args:
            schema: the stored columns.
            capacity: maximum number of rows.
            streams: uint64[n], numbers of the streams; methods refer to streams by index.
            of_steps: whether the table is a table of steps, whose messages include step numbers.
        """
        self.capacity = capacity
        self.count = 0
        """Number of rows in the block."""
        self._schema = schema
        self._streams = streams
        self._of_steps = of_steps
        self._columns: dict[str, Array] = {
            name: np.empty((capacity, *column.shape), column.dtype.newbyteorder("=")) for name, column in schema.items()
        }
        self._stream_of = np.zeros(capacity, np.int64)
        self._stream_items = self._stream_of.data if len(streams) > 1 else None  # faster for single values
        self._runs: list[list[int]] = []  # stream, row, episode, step, end
        self._run_of = np.full(len(streams), _NO_RUN)
        self.run_of = self._run_of.data
        """By stream: index of its current run in the block; negative if it has none."""
        self._priorities: list[float] = []
        self._prioritized: list[int] = []  # the stream of each priority
        self.has_priorities: bool | None = None
        """Whether the writer gave priorities for the anchors that this block completes. None: none is complete yet."""
        self._scalars: list[tuple[str, memoryview[Any], frozenset[type]]] = []
        self._short_floats: list[tuple[str, memoryview[Any]]] = []
        self._arrays: list[tuple[str, Array, np.dtype[Any], tuple[int, ...]]] = []
        self._long_arrays: list[tuple[str, memoryview, int, np.dtype[Any], tuple[int, ...]]] = []
        self._absent: dict[str, Any] = {}  # zeros for optional columns, and masks
        for name, mask in schema.masks.items():
            zeros = np.zeros(schema[name].shape, self._columns[name].dtype)
            self._absent |= {name: zeros if zeros.ndim else zeros.item(), mask: False}
        for name, target in self._columns.items():
            dtype = np.dtype(target.dtype.name)  # the object that most arrays have, which is compared faster
            if target.nbytes >= _LONG_BYTES * capacity and dtype.name not in _SLOW_DTYPES:
                as_bytes = target.reshape(-1).view(np.uint8).data
                self._long_arrays.append((name, as_bytes, len(as_bytes) // capacity, dtype, target.shape[1:]))
            elif target.ndim > 1 or target.dtype.name in _SLOW_DTYPES:
                self._arrays.append((name, target, dtype, target.shape[1:]))
            elif target.dtype.name == "float32":
                self._short_floats.append((name, target.data))
            else:
                self._scalars.append((name, target.data, _TYPES[target.dtype.kind]))

    @property
    def room(self) -> int:
        """Number of rows that still fit."""
        return self.capacity - self.count

    def accepts(self, *, priorities: bool) -> bool:
        """Whether the next anchors may be added with priorities (``priorities=True``) or without (False).

        A block cannot contain both anchors with priorities and anchors without.
        """
        return self.has_priorities is None or self.has_priorities is priorities

    def begin_run(self, stream: int, row: int, episode: int, step: int) -> None:
        """Begin a run, which becomes the current run of its stream.

        Args:
            stream: index of the stream.
            row: index of the run's first row in the block; earlier rows of the stream belong to earlier runs.
            episode: number of the episode in the stream.
            step: number of the run's first step in the episode.
        """
        self.run_of[stream] = len(self._runs)
        self._runs.append([stream, row, episode, step, replay_pb2.EPISODE_END_UNSPECIFIED])

    def without_run(self, streams: NDArray[np.intp]) -> list[int]:
        """Return which of ``streams`` (indices, int64[n]) have no current run."""
        found: list[int] = streams[self._run_of[streams] < 0].tolist()
        return found

    def end_run(self, stream: int, end: replay_pb2.EpisodeEnd.ValueType = replay_pb2.EPISODE_END_UNSPECIFIED) -> None:
        """End the current run of a stream, if any. ``end`` says whether and how its last row closes the episode."""
        run = self.run_of[stream]
        if run >= 0:
            self._runs[run][-1] = end
            self.run_of[stream] = _NO_RUN

    def add(self, values: Mapping[str, Any], stream: int) -> None:
        """Copy a row into the block, which must have room. If the stream has no current run, call `begin_run` as well.

        Args:
            values: values by column.
            stream: index of the row's stream.

        Raises:
            InvalidArgumentError: the row does not match the schema. The block is unchanged.
        """
        row = self.count
        complete = self._with_masks(values) if self._absent else values
        if len(complete) != len(self._columns) or not self._add_fast(complete, row):
            self._add_checked(values, row)
        if self._stream_items is not None:
            self._stream_items[row] = stream
        self.count = row + 1

    def add_closing(self, values: Mapping[str, Any], stream: int) -> None:
        """Copy a row that closes an episode, like `add`; missing columns are set to zero.

        Args:
            values: values by column, the result of `checked_row`.
            stream: index of the row's stream.
        """
        for name, column in self._columns.items():
            column[self.count] = values.get(name, 0)
        self._stream_of[self.count] = stream
        self.count += 1

    def add_all(self, columns: Mapping[str, Array], streams: NDArray[np.intp]) -> None:
        """Copy one row for each of several streams, like `add`; there must be room for all.

        Args:
            columns: the result of `checked_rows`, with a row for every stream of the block.
            streams: indices of the streams, int64[n]; only their rows are copied.
        """
        rows = slice(self.count, self.count + len(streams))
        is_all = len(streams) == len(self._streams)
        for name, values in columns.items():
            np.copyto(self._columns[name][rows], values if is_all else values[streams], casting="unsafe")  # was checked
        self._stream_of[rows] = streams
        self.count = rows.stop

    def add_priorities(self, streams: Sequence[int], priorities: Sequence[float] | None) -> None:
        """Record the priorities of the anchors that the last rows complete; `accepts` must allow that.

        Args:
            streams: index of each anchor's stream. Anchors of the same stream are in step order.
            priorities: one priority per anchor; None: the server chooses them.
        """
        if not streams:
            return
        self.has_priorities = priorities is not None
        if priorities is not None:
            self._priorities += priorities
            self._prioritized += streams

    def columns(self) -> dict[str, Array]:
        """Return the block's rows by column, as views."""
        return {name: column[: self.count] for name, column in self._columns.items()}

    def like(self) -> RowBlock:
        """Create an empty block with the same schema, capacity and streams."""
        return RowBlock(self._schema, self.capacity, self._streams, of_steps=self._of_steps)

    def message(self, head: replay_pb2.WriteRequest) -> list[Content]:
        """Serialize the block as one message, in parts; some of them are views of the block.

        ``head`` has the other fields of the message. This method adds row count, runs and priorities to it.
        """
        order = np.argsort(self._stream_of[: self.count], kind="stable") if len(self._streams) > 1 else None
        head.insertion.row_count = self.count
        head.insertion.runs.CopyFrom(self._runs_in_order(order))
        if self.has_priorities:
            priorities = np.array(self._priorities, "<f8")
            head.insertion.priorities = priorities[np.argsort(self._prioritized, kind="stable")].tobytes()
        start = message_start(head, self._schema.row_bytes * self.count)
        return [start, *(self._in_order(column, order) for column in self._columns.values())]

    def clear(self) -> None:
        """Remove all rows."""
        self.count = 0
        self.has_priorities = None
        self._runs.clear()
        self._run_of.fill(_NO_RUN)
        self._priorities.clear()
        self._prioritized.clear()

    def _in_order(self, column: Array, order: NDArray[np.intp] | None) -> memoryview:
        """Return a column's values as bytes, in the given order of rows; None: in order of arrival."""
        values = column[: self.count] if order is None else column.take(order, axis=0)
        in_bytes: memoryview = values.astype(values.dtype.newbyteorder("<"), copy=False).reshape(-1).view(np.uint8).data
        return in_bytes

    def _runs_in_order(self, order: NDArray[np.intp] | None) -> replay_pb2.Runs:
        """Return the runs of the rows in the given order; None: in order of arrival."""
        streams, rows, episodes, steps, ends = np.array(sorted(self._runs), np.int64).T
        firsts = rows if order is None else self._places(streams, rows, order)
        runs = replay_pb2.Runs(
            row_counts=np.diff(firsts, append=self.count).astype("<i8").tobytes(),
            streams=self._streams[streams].astype("<u8").tobytes(),
            episodes=episodes.astype("<u8").tobytes(),
        )
        if self._of_steps:
            runs.first_steps = steps.astype("<i8").tobytes()
            runs.ends = ends.astype("u1").tobytes()
        return runs

    def _places(self, streams: NDArray[np.int64], rows: NDArray[np.int64], order: NDArray[np.intp]) -> NDArray[np.intp]:
        """Convert ``rows``, the indices of the runs' first rows, to their positions in the given order, int64[m]."""
        in_order = self._stream_of[order] * self.capacity + order
        return in_order.searchsorted(streams * self.capacity + rows)

    def _add_fast(self, values: Mapping[str, Any], row: int) -> bool:
        """Store a row; return False if a value needs a cast or is invalid."""
        try:
            for name, scalars, types in self._scalars:
                value = values[name]
                if type(value) not in types:
                    return False
                scalars[row] = value  # raises if out of range
            for name, scalars in self._short_floats:
                value = values[name]
                if type(value) not in _REALS or not _LOWEST <= value <= _LARGEST:  # memoryview would store infinity
                    return False
                scalars[row] = value
            for name, arrays, dtype, shape in self._arrays:
                value = values[name]
                if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                    return False
                arrays[row] = value
            for name, as_bytes, size, dtype, shape in self._long_arrays:
                value = values[name]
                if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                    return False
                as_bytes[row * size : (row + 1) * size] = value.data.cast("B")  # raises if not contiguous
        except (KeyError, TypeError, ValueError, OverflowError):
            return False
        return True

    def _with_masks(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add masks, and zeros for missing optional columns, so that the row can take the fast path.

        A row that already has masks, or has nested values, takes the slow path.
        """
        masks = self._schema.masks
        if not values.keys().isdisjoint(masks.values()):
            return {}
        return self._absent | dict(values) | {mask: True for name, mask in masks.items() if name in values}

    def _add_checked(self, values: Mapping[str, Any], row: int) -> None:
        for name, value in checked_row(self._schema, values).items():
            self._columns[name][row] = value


def checked_priority(priority: Any) -> float:
    """Check one priority.

    Raises:
        InvalidArgumentError: it is not a finite number of at least 0.
    """
    value = (
        priority if isinstance(priority, float | int) else checked_array("priority", _PRIORITY, priority).astype(float)
    )
    if np.ndim(value) == 0 and 0.0 <= value <= sys.float_info.max:
        return float(value)
    expected = "a finite number of at least 0, such as abs(td_error)"
    raise InvalidArgumentError.of_field("priority", expected, repr(priority))
