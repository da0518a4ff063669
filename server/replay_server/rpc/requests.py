"""A request from its bytes: its size is checked, then its caller's rights, and only then it is parsed.

What a message may cost before it is refused is bounded in each of these steps, by its rows alone: protobuf parses at
most `PLAIN_BYTES` of it that are neither rows nor arrays about rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message
from replay_proto.errors import FieldError
from replay_proto.framing import NO_ROWS, Framed, carries_rows, fields_of, split_rows

from replay_server.auth.caller import Caller
from replay_server.flow.bounds import PLAIN_BYTES, Bounds
from replay_server.rpc.rights import Demand

M = TypeVar("M", bound=Message)

MOST_FIELDS: Final = 32
"""Most fields of a message with rows, and of each long message in it. The contract's messages have under a third."""
_ARRAYS: Final = {
    "replay.v1.Insertion.priorities",
    "replay.v1.PriorityUpdate.keys",
    "replay.v1.PriorityUpdate.priorities",
    "replay.v1.ReadRequest.keys",
}
"""Fields of requests that have a number for each row."""
_LENGTH_DELIMITED: Final = 2

RequestReader = Callable[[bytes, Caller, str], Framed[M]]
"""Reads a request of a caller, on a stream that named this table before."""


def request_reader(message_type: type[M], demand: Demand, bounds: Bounds) -> RequestReader[M]:
    """A function that reads the requests of one RPC.

    Args:
        message_type: their type.
        demand: what a caller has to be allowed.
        bounds: how long a request may be.

    Returns:
        The function; it raises FieldError for what is not a message of this type, and RequestError: TOO_LARGE,
        PERMISSION_DENIED, or UNAUTHENTICATED if the caller's token is not valid any more.
    """
    names, described, has_rows = demand.names, message_type.DESCRIPTOR, carries_rows(message_type)
    is_insert = "insertion" in described.fields_by_name

    def read(data: bytes, caller: Caller, stream_table: str) -> Framed[M]:
        bounds.check_message(len(data))
        try:
            head, rows = split_rows(data, MOST_FIELDS) if has_rows else (data, NO_ROWS)
            if len(head) > PLAIN_BYTES:
                bounds.check_head(len(head), _plain_bytes(described, memoryview(head)), is_insert=is_insert)
            demand.check(caller, None if names is None else names.FromString(head), stream_table)
            return Framed(message_type.FromString(head), rows)
        except DecodeError as error:
            raise FieldError(
                "request", f"a {described.full_name}", f"bytes that could not be parsed ({error})"
            ) from error

    return read


def _plain_bytes(described: Any, message: memoryview) -> int:
    """Bytes of a message that has no rows beside its arrays.

    Raises:
        DecodeError: if it is no message, or it or one in it that has arrays has more than `MOST_FIELDS` fields.
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
    """Whether it, or a message in it, has arrays."""
    return any(
        field.full_name in _ARRAYS or (field.message_type is not None and _has_arrays(field.message_type))
        for field in described.fields
    )
