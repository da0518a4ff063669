"""Decodes batches and rows from a server's replies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from replay_proto.frames import Content
from replay_proto.framing import Array, Carried, column_views, split_message
from replay_proto.schema import Column, Schema
from replay_proto.steps import Steps
from replay_proto.v1 import replay_pb2

from replay_client._rows.buffers import Blank, ColumnBuffers
from replay_client._rows.expansion import Expansion, as_bytes
from replay_client._rows.mapped_rows import MappedRows
from replay_client._rows.positions import WindowPositions
from replay_client._rows.windows import Windows
from replay_client.batch import Batch, RowInfo, Rows
from replay_client.errors import InternalServerError, InvalidArgumentError

M = TypeVar("M", replay_pb2.SampleResponse, replay_pb2.LearnResponse, replay_pb2.ReadResponse)

_KEY_BYTES = 8
_TOGETHER_BYTES = 4 << 20
"""Maximum bytes of batches that are copied together. They share memory, which is not reused before all are freed."""


class BatchReader:
    """Decodes batches of one table. Thread-safe."""

    def __init__(
        self,
        schema: Schema,
        steps: Steps | None,
        names: Collection[str] | None = None,
        blank: Blank | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        """Read batches with the columns ``names``, or with all columns if it is None.

        ``blank`` provides the memory for batches; if it is None, the reader has its own. If ``read_only``, the keys,
        probabilities and weights are not copied from the reply.
        """
        of_batches = schema.columns if steps is None else steps.sampled
        columns = {name: column for name, column in of_batches.items() if names is None or name in names}
        carried = Carried(columns if steps is None else steps.carried_for(columns))
        self._array = np.frombuffer if read_only else _own
        self.names = None if names is None else replay_pb2.ColumnNames(names=carried.columns)
        """The columns that requests ask replies to carry. None asks for the server's default."""
        self._carried = carried
        self._plain = ColumnReader(columns, blank)
        self._windows = None if steps is None else _WindowReader(steps, columns, carried, self._plain.blank)
        self._has_bytes = carried.size(1) > 0
        """Whether rows have any bytes. If not, none are copied from the mapped files."""
        self._may_join = blank is None and (steps is None or not steps.is_ragged)
        """Whether several batches may be copied together. Memory from ``blank`` is for one batch each."""
        self._item_bytes = sum(column.row_bytes for column in columns.values())

    def sampled(self, answer: Content, draw: replay_pb2.Draw, mapped: MappedRows | None = None) -> Batch | None:
        """Decode the batch in a reply to Sample; return None if inserts overwrote its rows during the copy.

        ``mapped`` copies the rows if the reply has none; it and ``draw`` must be what the request was made with.

        Raises:
            InvalidArgumentError: the server is older than the draw's options.
        """
        head, rows = _split(replay_pb2.SampleResponse, answer, mapped)
        _check_known(draw, head.batch)
        (columns,) = self._columns([head.batch], rows, mapped)
        return self._batch(head.batch, columns)

    def learned(
        self, answer: Content, draw: replay_pb2.Draw, mapped: MappedRows | None = None
    ) -> tuple[replay_pb2.LearnResponse, list[Batch | None]]:
        """Decode a reply to Learn: the message and its batches. A batch may be None, as in `sampled`."""
        head, rows = _split(replay_pb2.LearnResponse, answer, mapped)
        for message in head.batches:
            _check_known(draw, message)
        of_batches = self._columns(head.batches, rows, mapped)
        return head, [self._batch(*each) for each in zip(head.batches, of_batches, strict=True)]

    def _columns(
        self, messages: Sequence[replay_pb2.Batch], rows: memoryview, mapped: MappedRows | None
    ) -> list[dict[str, Array] | None]:
        """Return the columns of each batch, from ``rows`` or the mapped files; None where rows were overwritten."""
        if mapped is not None and self._has_bytes and not rows:
            return self._copied(messages, mapped)
        columns: list[dict[str, Array] | None] = []
        start = 0
        for number, message in enumerate(messages, 1):
            end = start + self._row_bytes(message) if number < len(messages) else len(rows)
            columns.append(self._received(message, rows[start:end]))
            start = end
        return columns

    def _received(self, message: replay_pb2.Batch, rows: memoryview) -> dict[str, Array]:
        if self._windows is not None:
            return self._windows.received(message, rows)
        return self._plain.received(rows, len(message.keys) // _KEY_BYTES)

    def _copied(self, messages: Sequence[replay_pb2.Batch], mapped: MappedRows) -> list[dict[str, Array] | None]:
        """Copy the columns of each batch from the mapped files. Small batches are copied together, which is faster."""
        counts = [len(message.keys) // _KEY_BYTES for message in messages]
        if len(messages) > 1 and self._may_join and sum(counts) * self._item_bytes <= _TOGETHER_BYTES:
            together = self._copied_alone(_joined(messages), mapped)
            if together is not None:
                ends = list(accumulate(counts))
                parts = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
                return [{name: values[part] for name, values in together.items()} for part in parts]
        return [self._copied_alone(message, mapped) for message in messages]

    def _copied_alone(self, message: replay_pb2.Batch, mapped: MappedRows) -> dict[str, Array] | None:
        if self._windows is not None:
            return self._windows.copied(message, mapped)
        return self._plain.copied(np.frombuffer(message.keys, "<i8"), mapped)

    def _row_bytes(self, message: replay_pb2.Batch) -> int:
        """Return how many bytes of the field ``rows`` belong to this batch."""
        if self._windows is not None:
            return self._windows.row_bytes(message)
        return self._carried.size(len(message.keys) // _KEY_BYTES)

    def _batch(self, message: replay_pb2.Batch, columns: dict[str, Array] | None) -> Batch | None:
        if columns is None:
            return None
        info = None
        if message.times_sampled:
            info = RowInfo(_own(message.times_sampled, "<u4"), _own(message.ages_s, "<f4"))
        return Batch(
            row_keys=self._array(message.keys, "<i8"),
            columns=columns,
            probabilities=self._array(message.probabilities, "<f8"),
            weights=self._array(message.weights, "<f4"),
            beta=message.beta,
            table_size=message.size,
            drawable=message.drawable,
            total_mass=message.total_mass,
            smallest_probability=message.smallest_probability,
            inserted=message.inserted,
            row_info=info,
            _positions=None if self._windows is None else WindowPositions(message, self._windows.item),
        )


class RowsReader:
    """Decodes replies to Read about one table. Thread-safe."""

    def __init__(self, schema: Schema, names: Collection[str] | None, *, of_steps: bool) -> None:
        """Read rows with the stored columns ``names``, or with all if it is None.

        ``of_steps`` says whether the table is a table of steps.
        """
        columns = {name: column for name, column in schema.items() if names is None or name in names}
        self.names = None if names is None else replay_pb2.ColumnNames(names=names)
        """The columns that requests ask replies to carry. None asks for all."""
        self.row_bytes = sum(column.row_bytes for column in columns.values())
        """Bytes of a row."""
        self.buffers = ColumnBuffers(columns)
        """Memory for rows."""
        self._columns = columns
        self._of_steps = of_steps

    def copied(self, keys: NDArray[np.int64], mapped: MappedRows) -> dict[str, Array] | None:
        """Copy rows from the mapped files; return None if inserts overwrote rows during the copy."""
        return ColumnReader(self._columns, self.buffers.blank).copied(keys, mapped)

    def read(self, answer: Content, blank: Blank, mapped: MappedRows | None = None) -> Rows | None:
        """Decode the rows in a reply to Read; return None if inserts overwrote rows during the copy.

        ``blank`` provides memory for the rows. ``mapped`` copies them if the reply has none; it must be what the
        request was made with.
        """
        head, rows = _split(replay_pb2.ReadResponse, answer, mapped)
        keys = _own(head.keys, "<i8")
        if rows or not self.row_bytes:
            mapped = None
        reader = ColumnReader(self._columns, blank)
        columns = reader.received(rows, len(keys)) if mapped is None else reader.copied(keys, mapped)
        if columns is None:
            return None
        return Rows(
            row_keys=keys,
            columns=columns,
            priorities=_own(head.priorities, "<f8"),
            streams=_own(head.streams, "<u8"),
            episodes=_own(head.episodes, "<u8"),
            steps=_own(head.steps, "<i8") if self._of_steps else None,
            ends=_own(head.ends, "u1") if self._of_steps else None,
        )


class ColumnReader:
    """Copies received columns for the caller, because gRPC's memory is read-only and unaligned."""

    def __init__(self, columns: Mapping[str, Column], blank: Blank | None = None) -> None:
        """Copy the columns that a reply carries; ``columns`` has them in the order of the reply."""
        self.blank: Blank = blank or ColumnBuffers(columns).blank
        """Provides memory for columns."""
        self._carried = Carried(columns)

    def received(self, rows: memoryview, row_count: int) -> dict[str, Array]:
        """Copy received columns; raise `InternalServerError` if there are not as many bytes as rows need."""
        _check_size(rows, row_count, self._carried.size(row_count))
        columns = self.blank(row_count)
        for name, view in column_views(self._carried.columns, rows, row_count).items():
            np.copyto(columns[name], view)
        return columns

    def copied(self, keys: NDArray[np.int64], mapped: MappedRows) -> dict[str, Array] | None:
        """Copy columns from the mapped files. Return None if inserts overwrote rows during the copy."""
        columns = self.blank(len(keys))
        return columns if mapped.gather(keys, columns) else None


class _WindowReader:
    """Builds the columns of batches of a table of steps."""

    def __init__(
        self,
        steps: Steps,
        columns: Mapping[str, Column],
        carried: Carried,
        blank: Blank,
    ) -> None:
        """Build ``columns`` from the stored columns ``carried``, in memory that ``blank`` provides."""
        self.item = steps.item
        """What the table draws."""
        self._shape = steps.window
        self._columns = columns
        self._carried = carried
        self._blank = blank
        self._expansion = Expansion(steps, columns)

    def row_bytes(self, message: replay_pb2.Batch) -> int:
        """Return how many bytes of the field ``rows`` belong to this batch, if the reply includes rows."""
        rows, windows = len(message.window_keys) // _KEY_BYTES, len(message.keys) // _KEY_BYTES
        return self._carried.size(rows, windows)

    def received(self, message: replay_pb2.Batch, rows: memoryview) -> dict[str, Array]:
        """Build the columns from rows in the reply; raise `InternalServerError` if it does not match the table."""
        row_count = len(message.window_keys) // _KEY_BYTES
        _check_size(rows, row_count, self.row_bytes(message))
        windows = Windows(message, np.arange(row_count), self._shape, starts_apart=True)
        views = column_views(self._carried.columns, rows, row_count, windows=len(windows))
        columns = self._blank_of(windows)
        self._expansion.write(windows, {name: as_bytes(view) for name, view in views.items()}, columns)
        return columns

    def copied(self, message: replay_pb2.Batch, mapped: MappedRows) -> dict[str, Array] | None:
        """Build the columns from the mapped files. Return None if inserts overwrote rows during the copy."""
        keys = np.frombuffer(message.window_keys, "<i8")
        windows = Windows(message, mapped.slots_of(keys), self._shape)
        columns = self._blank_of(windows)
        is_whole = mapped.copied(keys, lambda: self._expansion.write(windows, mapped.as_bytes, columns))
        return columns if is_whole else None

    def _blank_of(self, windows: Windows) -> dict[str, Array]:
        counts = self._expansion.row_counts(windows, self._columns)
        if counts is None:
            return self._blank(len(windows))
        return {name: np.empty((counts[name], *each.shape), each.dtype) for name, each in self._columns.items()}


def _joined(messages: Sequence[replay_pb2.Batch]) -> replay_pb2.Batch:
    """Join batches to one, with what is needed to copy its columns."""
    return replay_pb2.Batch(
        keys=b"".join([message.keys for message in messages]),
        window_keys=b"".join([message.window_keys for message in messages]),
        before=b"".join([message.before for message in messages]),
        after=b"".join([message.after for message in messages]),
        ends=b"".join([message.ends for message in messages]),
    )


def _split(of: type[M], answer: Content, mapped: MappedRows | None) -> tuple[M, memoryview]:
    """Split a reply into its head (the message without rows) and its rows."""
    if mapped is None:
        return split_message(of, answer)
    head = of.FromString(bytes(answer))  # rarely has rows, so protobuf may copy them
    rows = head.rows
    if rows:
        mapped.is_refused = True
    return head, memoryview(rows)


def selected_rows(rows: Rows, places: NDArray[np.intp]) -> Rows:
    """Copy the rows at these positions, int64[n]."""
    return Rows(
        row_keys=rows.row_keys[places],
        columns={name: column[places] for name, column in rows.columns.items()},
        priorities=rows.priorities[places],
        streams=rows.streams[places],
        episodes=rows.episodes[places],
        steps=None if rows.steps is None else rows.steps[places],
        ends=None if rows.ends is None else rows.ends[places],
    )


def joined_rows(parts: Sequence[Rows], columns: Mapping[str, Array] | None = None) -> Rows:
    """Concatenate the rows of one or more replies to Read; ``columns``, if given, are those of all rows."""
    if len(parts) == 1:
        return parts[0]
    if columns is None:
        columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    has_steps = parts[0].steps is not None
    return Rows(
        row_keys=np.concatenate([part.row_keys for part in parts]),
        columns=columns,
        priorities=np.concatenate([part.priorities for part in parts]),
        streams=np.concatenate([part.streams for part in parts]),
        episodes=np.concatenate([part.episodes for part in parts]),
        steps=np.concatenate([part.steps for part in parts if part.steps is not None]) if has_steps else None,
        ends=np.concatenate([part.ends for part in parts if part.ends is not None]) if has_steps else None,
    )


def _check_known(draw: replay_pb2.Draw, message: replay_pb2.Batch) -> None:
    """Raise InvalidArgumentError if the server has ignored an option of the draw, which is then newer than it."""
    if draw.row_info and not message.times_sampled:
        raise InvalidArgumentError.of_field(
            "row_info", "a server that knows it", "a server of an older version than the client; upgrade it"
        )


def _check_size(rows: memoryview, row_count: int, due_bytes: int) -> None:
    if len(rows) != due_bytes:
        raise InternalServerError(f"the server sent {len(rows)} bytes for {row_count} rows of {due_bytes} bytes")


def _own(data: bytes, dtype: str) -> NDArray[Any]:
    """Copy a small array, because protobuf's bytes may be shared."""
    return np.frombuffer(bytearray(data), dtype)
