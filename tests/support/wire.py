"""Malformed messages, built byte by byte."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import grpc
from replay_proto.v1 import replay_pb2

SERVICE = replay_pb2.DESCRIPTOR.services_by_name["ReplayService"]
METHODS = tuple(method.name for method in SERVICE.methods)
STREAMS = ("Learn", "Write")
VARINT, FIXED64, LENGTH_DELIMITED, START_GROUP, END_GROUP, FIXED32 = range(6)


def varint(value: int) -> bytes:
    """A number of any size in base 128."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def tag(number: int, wire_type: int) -> bytes:
    """First bytes of a field."""
    return varint(number << 3 | wire_type)


def bytes_field(number: int, content: bytes, claimed_size: int | None = None) -> bytes:
    """A length-delimited field, optionally with a wrong length."""
    size = len(content) if claimed_size is None else claimed_size
    return tag(number, LENGTH_DELIMITED) + varint(size) + content


def call_raw(channel: grpc.Channel, method: str, *messages: bytes) -> list[bytes]:
    """Call an RPC with bytes; return all replies as bytes.

    Raises:
        grpc.RpcError: it is refused; replies to earlier messages of the stream are lost.
    """
    return list(call_raw_one_by_one(channel, method, messages))


def call_raw_one_by_one(channel: grpc.Channel, method: str, messages: Iterable[bytes]) -> Iterator[bytes]:
    """Like `call_raw`, but yield replies one by one."""
    path = f"/{SERVICE.full_name}/{method}"
    if method in STREAMS:
        stream: Callable[..., Iterator[bytes]] = channel.stream_stream(path)
        yield from stream(iter(messages), timeout=60.0)
    else:
        unary: Callable[..., bytes] = channel.unary_unary(path)
        for message in messages:
            yield unary(message, timeout=60.0)
