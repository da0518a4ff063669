"""Builds and reads messages with rows in place.

Every such message has a field ``bytes rows = 15``, which protobuf would copy three times. Here, protobuf handles only
the other, small fields (the head). Rows are written directly into the serialized message, or read as views of it:

    def write(rows):
        np.take(column, slots, axis=0, out=...)      # into views of `rows`

    message = message_with_rows(replay_pb2.SampleResponse(batch=batch), 1 << 20, write)
    ...
    framed = split_message(replay_pb2.SampleResponse, received)
    framed.head.batch, column_views(schema, framed.rows, row_count=256)["obs"]
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from replay_proto.schema import Column

M = TypeVar("M", bound=Message)
Array = NDArray[np.generic]

ROWS_FIELD = 15
"""Number of the field ``rows`` in every message that has it."""

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_ROWS_TAG = bytes([ROWS_FIELD << 3 | _LENGTH_DELIMITED])
_MAX_VARINT_BYTES = 10
_MAX_FIELD_NUMBER = (1 << 29) - 1

NO_ROWS = memoryview(b"")
"""The rows of a message without rows."""


class Framed(NamedTuple, Generic[M]):
    """A received message: its parsed head, and its rows as a view of the received bytes."""

    head: M
    """The message without ``rows``."""
    rows: memoryview
    """Content of ``rows``: a view that keeps the received bytes alive, or empty."""


def message_with_rows(head: Message, size: int, write: Callable[[NDArray[np.uint8]], None]) -> bytes:
    """Serialize a message, writing the rows directly into it: ``write`` gets uint8[size]. ``head`` has no ``rows``."""
    start = message_start(head, size)
    # gRPC only accepts bytes, which BytesIO can fill in place: `getvalue` makes no copy once all views are released.
    message = io.BytesIO(bytes(len(start) + size))
    message.write(start)
    write(np.frombuffer(message.getbuffer(), np.uint8)[len(start) :])
    return message.getvalue()


def joined_message(head: Message, parts: Sequence[memoryview]) -> bytes:
    """Serialize a message whose rows already exist in parts. Faster than `message_with_rows`, but holds the GIL.

    ``head`` is the message without ``rows``, which are the contiguous ``parts`` in this order.
    """
    return b"".join((message_start(head, sum(part.nbytes for part in parts)), *parts))


def message_start(head: Message, size: int) -> bytes:
    """Serialize the part of a message that precedes its rows. ``size`` is the length of the rows in bytes."""
    return head.SerializeToString() + _ROWS_TAG + _varint(size)


def split_message(message_type: type[M], data: bytes | memoryview) -> Framed[M]:
    """Read a reply with rows, without copying them. For requests, use `split_rows`, which can limit their fields.

    Fields may come in any order, and the last ``rows`` wins. If ``data`` is writable, so are the rows.

    Raises:
        google.protobuf.message.DecodeError: the data is not a message of this type.
    """
    if not carries_rows(message_type):
        return Framed(message_type.FromString(bytes(data)), NO_ROWS)
    head, rows = split_rows(data)
    return Framed(message_type.FromString(head), rows)


def carries_rows(message_type: type[Message]) -> bool:
    """Whether messages of a type have the field ``rows``."""
    return ROWS_FIELD in message_type.DESCRIPTOR.fields_by_number


def split_rows(data: bytes | memoryview, most_fields: int | None = None) -> tuple[bytes, memoryview]:
    """Split a message into its rows and the rest, without copying the rows or parsing the rest.

    Returns:
        The wire form of the message without ``rows``, and its rows; see `Framed`.

    Raises:
        google.protobuf.message.DecodeError: the data is not a message, or has more than ``most_fields`` fields.
    """
    view = memoryview(data)
    head, rows, kept_from = [], NO_ROWS, 0
    for tag, start, content, end in fields_of(view, most_fields):
        if tag == _ROWS_TAG[0]:
            rows = view[content:end]
            head.append(view[kept_from:start])
            kept_from = end
    head.append(view[kept_from:])
    return b"".join(head), rows


def fields_of(view: memoryview, most: int | None = None) -> Iterator[tuple[int, int, int, int]]:
    """Iterate over the top-level fields of a message.

    Yields:
        For each field, its tag, and the offsets of its start, its content and its end.

    Raises:
        google.protobuf.message.DecodeError: the data is not a message, or has more than ``most`` fields.
    """
    size, position, left = len(view), 0, -1 if most is None else most
    while position < size:
        if left == 0:
            raise DecodeError(f"it has more than {most} fields")
        left -= 1
        start = position
        tag, position = _read_varint(view, position)
        if not 0 < tag >> 3 <= _MAX_FIELD_NUMBER:
            raise DecodeError(f"{tag >> 3} is not a valid field number")
        wire_type = tag & 7
        if wire_type == _LENGTH_DELIMITED:
            length, content = _read_varint(view, position)
            position = content + length
        elif wire_type == _VARINT:
            content, position = position, _read_varint(view, position)[1]
        elif wire_type in (_FIXED64, _FIXED32):
            content, position = position, position + (8 if wire_type == _FIXED64 else 4)
        else:
            raise DecodeError(f"wire type {wire_type} is not used by this protocol")
        if position > size:
            raise DecodeError("a field is truncated")
        yield tag, start, content, position


def column_views(
    columns: Mapping[str, Column], rows: memoryview | Array, row_count: int, windows: int | None = None
) -> dict[str, Array]:
    """Split ``rows``, of exactly the right number of bytes, into columns: views by name, ``dtype[n, *shape]``.

    They are writable if ``rows`` is. Of drawn windows, columns with ``at="start"`` have one value per window; None: one
    per row.
    """
    views: dict[str, Array] = {}
    position = 0
    for name, column in columns.items():
        count = windows if windows is not None and column.at == "start" else row_count
        views[name] = np.ndarray((count, *column.shape), column.dtype, buffer=rows, offset=position)
        position += column.row_bytes * count
    return views


class Carried:
    """The stored columns in the field ``rows`` of a message."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        """Describe rows with these columns, which are in the order of the schema."""
        self.columns = columns
        """The columns by name."""
        self._window_bytes = sum(column.row_bytes for column in columns.values() if column.at == "start")
        self._row_bytes = sum(column.row_bytes for column in columns.values()) - self._window_bytes

    def size(self, row_count: int, windows: int | None = None) -> int:
        """Return the size of this many rows in bytes. For ``windows``, see `column_views`."""
        return self._row_bytes * row_count + self._window_bytes * (row_count if windows is None else windows)


def flat_rows(column: Array) -> Array:
    """View ``dtype[n, *shape]`` as ``dtype[n, elements]``."""
    return column.reshape(len(column), math.prod(column.shape[1:]))


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(view: memoryview, position: int) -> tuple[int, int]:
    """Return the number at ``position``, and the position after it."""
    if position < len(view) and (first := view[position]) < 0x80:
        return first, position + 1
    value = 0
    for index, byte in enumerate(view[position : position + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise DecodeError("a number is truncated or too long")
