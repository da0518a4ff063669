"""Messages that carry rows, built and read in place.

Every such message has a field ``bytes rows = 15``. Protobuf would copy it three times on its way; here
the small rest (the head) goes through protobuf, and the rows are written straight into the wire form, or
seen in it:

    message, rows = blank_message(replay_pb2.SampleResponse(batch=batch), size=1 << 20)
    np.take(column, slots, axis=0, out=...)          # into views of `rows`
    ...
    framed = split_message(replay_pb2.SampleResponse, received)
    framed.head.batch, column_views(schema, framed.rows, row_count=256)["obs"]
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from replay_proto.schema import Schema

M = TypeVar("M", bound=Message)
Array = NDArray[np.generic]

ROWS_FIELD = 15
"""Number of the field ``rows`` in every message that has it."""

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_ROWS_TAG = bytes([ROWS_FIELD << 3 | _LENGTH_DELIMITED])
_MAX_VARINT_BYTES = 10
_NO_ROWS = memoryview(b"")

_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype = ctypes.py_object
_new_bytes.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t]
_address_of = ctypes.pythonapi.PyBytes_AsString
_address_of.restype = ctypes.c_void_p
_address_of.argtypes = [ctypes.py_object]


@dataclass(frozen=True)
class Framed(Generic[M]):
    """A message received: its head parsed, its rows as they lie in the bytes that came."""

    head: M
    """The message without ``rows``."""
    rows: memoryview
    """What ``rows`` holds: a view that keeps the received bytes alive; empty if there is none."""


def blank_message(head: Message, size: int) -> tuple[bytes, NDArray[np.uint8]]:
    """Make the wire form of a message whose rows are still to be written.

    Args:
        head: the message without ``rows``.
        size: bytes that ``rows`` will take.

    Returns:
        The wire form, and uint8[size]: a writable view of its rows. Write them before the bytes are
        shown to anyone else, and drop the view with them.
    """
    start = head.SerializeToString() + _ROWS_TAG + _varint(size)
    # A bytes object may be written to until somebody else has seen it; gRPC takes nothing but bytes,
    # and building the reply anywhere else would cost a second copy of it.
    message: bytes = _new_bytes(None, len(start) + size)
    region = (ctypes.c_uint8 * len(message)).from_address(_address_of(message))
    view = np.frombuffer(memoryview(region), np.uint8)
    view[: len(start)] = np.frombuffer(start, np.uint8)
    return message, view[len(start) :]


def split_message(message_type: type[M], data: bytes | memoryview) -> Framed[M]:
    """Read a message that carries rows, without copying them.

    Args:
        message_type: the type of the message.
        data: its wire form, from any sender: fields may come in any order, and the last ``rows`` counts. Of a
            writable view the rows are writable, too.

    Raises:
        google.protobuf.message.DecodeError: if it is not a message of this type.
    """
    if ROWS_FIELD not in message_type.DESCRIPTOR.fields_by_number:
        return Framed(message_type.FromString(bytes(data)), _NO_ROWS)
    head, rows = [], _NO_ROWS
    view, position = memoryview(data), 0
    while position < len(view):
        start = position
        tag, position = _read_varint(view, position)
        content, position = _skip_field(view, position, tag & 7)
        if tag == _ROWS_TAG[0]:
            rows = view[content:position]
        else:
            head.append(view[start:position])
    return Framed(message_type.FromString(b"".join(head)), rows)


def column_views(schema: Schema, rows: memoryview | Array, row_count: int) -> dict[str, Array]:
    """Columns as they lie in ``rows``: column after column, each with all its rows.

    Args:
        schema: the table's.
        rows: exactly ``row_count * schema.row_bytes`` bytes.
        row_count: how many rows.

    Returns:
        By name, ``dtype[row_count, *shape]``: views, writable if ``rows`` is.
    """
    data = np.frombuffer(rows, np.uint8)
    views, position = {}, 0
    for name, column in schema.items():
        size = column.row_bytes * row_count
        views[name] = data[position : position + size].view(column.dtype).reshape(row_count, *column.shape)
        position += size
    return views


def flat_rows(column: Array) -> Array:
    """A view of ``dtype[n, *shape]`` as ``dtype[n, elements]``."""
    return column.reshape(len(column), math.prod(column.shape[1:]))


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(view: memoryview, position: int) -> tuple[int, int]:
    """The number at ``position``, and where the next thing begins."""
    value = 0
    for index, byte in enumerate(view[position : position + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise DecodeError("a number is cut short or too long")


def _skip_field(view: memoryview, position: int, wire_type: int) -> tuple[int, int]:
    """Where the content of the field at ``position`` begins and ends."""
    if wire_type == _VARINT:
        return position, _read_varint(view, position)[1]
    if wire_type == _LENGTH_DELIMITED:
        size, position = _read_varint(view, position)
    elif wire_type in (_FIXED64, _FIXED32):
        size = 8 if wire_type == _FIXED64 else 4
    else:
        raise DecodeError(f"wire type {wire_type} is not used by this contract")
    if position + size > len(view):
        raise DecodeError("a field is cut short")
    return position, position + size
