"""Reads requests: checks the size, then the caller's rights, and only then parses. Short requests are parsed first.

Apart from rows and arrays, protobuf parses at most `PLAIN_BYTES` of a request. So the number of rows bounds the cost of
a request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message
from replay_proto.errors import FieldError
from replay_proto.frames import Content
from replay_proto.framing import NO_ROWS, Framed, carries_rows, fields_of, split_rows

from replay_server.auth import Caller
from replay_server.flow.bounds import PLAIN_BYTES, Bounds
from replay_server.rpc.rights import Demand

M = TypeVar("M", bound=Message)

SHORT_BYTES: Final = 1 << 15
"""Requests of at most this size are parsed as a whole: that is faster than finding their rows first, and parsing takes
less than a millisecond whatever they contain."""
MOST_FIELDS: Final = 32
"""Maximum number of fields in a message with rows, in a long message, and in each message with arrays nested in it.

This is three times as many as clients send.
"""
_ARRAYS: Final = {
    "replay.v1.Insertion.priorities",
    "replay.v1.Runs.row_counts",
    "replay.v1.Runs.streams",
    "replay.v1.Runs.episodes",
    "replay.v1.Runs.first_steps",
    "replay.v1.Runs.ends",
    "replay.v1.PriorityUpdate.keys",
    "replay.v1.PriorityUpdate.priorities",
    "replay.v1.RowUpdate.keys",
    "replay.v1.ReadRequest.keys",
}
"""Fields of requests that are arrays, with one number per row, run or key."""
_LENGTH_DELIMITED: Final = 2

RequestReader = Callable[[Content, Caller, str], Framed[M]]
"""Reads a request. Takes its bytes, its caller, and the table named earlier on the stream."""


def request_reader(message_type: type[M], demand: Demand, bounds: Bounds) -> RequestReader[M]:
    """Create a function that reads the requests of one RPC, each of which requires a right.

    It raises FieldError if a message is malformed. It raises RequestError with TOO_LARGE, with PERMISSION_DENIED, or,
    if the caller's token is no longer valid, with UNAUTHENTICATED.
    """
    names, described, has_rows = demand.names, message_type.DESCRIPTOR, carries_rows(message_type)
    is_insert = "insertion" in described.fields_by_name

    def read(data: Content, caller: Caller, stream_table: str) -> Framed[M]:
        bounds.check_message(len(data))
        # If it cannot be parsed, the caller's rights are checked before it is refused.
        if len(data) <= SHORT_BYTES and (request := _parsed(message_type, data)) is not None:
            demand.check(caller, request, stream_table)
            return Framed(request, memoryview(request.rows) if has_rows else NO_ROWS)
        try:
            head, rows = split_rows(data, MOST_FIELDS) if has_rows else (bytes(data), NO_ROWS)
            if len(head) > PLAIN_BYTES:
                bounds.check_head(len(head), _plain_bytes(described, memoryview(head)), is_insert=is_insert)
            demand.check(caller, None if names is None else names.FromString(head), stream_table)
            return Framed(message_type.FromString(head), rows)
        except DecodeError as error:
            raise FieldError(
                "request", f"a {described.full_name}", f"bytes that could not be parsed ({error})"
            ) from error

    return read


def _parsed(message_type: type[M], data: Content) -> Any:
    """Parse a message, and return None if that is impossible."""
    try:
        return message_type.FromString(bytes(data))
    except DecodeError:
        return None


def _plain_bytes(described: Any, message: memoryview) -> int:
    """Return the size in bytes of a message from which the rows have been removed, not counting its arrays.

    Raises:
        DecodeError: the message is malformed, or it or a nested message with arrays has more than `MOST_FIELDS` fields.
    """
    if not _has_arrays(described):
        return len(message)
    plain = 0
    for tag, start, content, end in fields_of(message, MOST_FIELDS):
        field = described.fields_by_number.get(tag >> 3) if tag & 7 == _LENGTH_DELIMITED else None
        if field is not None and field.message_type is not None:
            plain += _plain_bytes(field.message_type, message[content:end])
        elif field is None or field.full_name not in _ARRAYS:
            plain += end - start
    return plain


def _has_arrays(described: Any) -> bool:
    return any(
        field.full_name in _ARRAYS or (field.message_type is not None and _has_arrays(field.message_type))
        for field in described.fields
    )
