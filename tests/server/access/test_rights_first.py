"""Rights are checked before parsing, on the same names that the handler sees."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from replay_client.security import token_metadata
from replay_proto.v1 import replay_pb2, replay_pb2_grpc
from replay_server.rpc.rights import only

from tests.server.access.test_rights import EXPECTED as REQUIRED
from tests.support.access import ADMIN, ALL, EXPIRED, MINE, OTHER, READ, WRITE, WRONG, write_usual_tokens
from tests.support.caller import table_config
from tests.support.frame_stub import FrameLink, FrameRpcError, hello_for
from tests.support.refusals import Refusal, refusal_in
from tests.support.server_process import ServerProcess
from tests.support.wire import METHODS, SERVICE, STREAMS, bytes_field

NAME = f"{MINE}table"
THEIRS = "theirs"
TOO_LITTLE = {
    method: WRITE if REQUIRED[method][0].startswith("read ") else READ
    for method in METHODS
    if method not in {"DescribeTable", "GetShards", "Checkpoint"}
}
"""An insufficient right for each RPC except DescribeTable and GetShards, open to all, and Checkpoint, which has only
names."""
BROKEN = b"\xff" * 20
"""Bytes that are not a valid message."""
TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    """A channel to a server with tokens, one table of this caller, and one of another."""
    folder: Path = tmp_path_factory.mktemp("rights-first")
    tokens = write_usual_tokens(folder / "tokens.toml")
    server = ServerProcess(folder / "log", "--tokens", str(tokens), "--memory-dir", str(folder), forked=True)
    with grpc.insecure_channel(server.address) as opened:
        stub = replay_pb2_grpc.ReplayServiceStub(opened)
        request = replay_pb2.CreateTableRequest(config=table_config(NAME))
        stub.CreateTable(request, metadata=token_metadata(ALL), timeout=TIMEOUT_S)
        yield opened
    server.terminate()


def refusal_of(channel: grpc.Channel, method: str, token: str, *messages: bytes) -> Refusal:
    """The refusal of the last of these messages."""
    with pytest.raises(grpc.RpcError) as error:
        send(channel, method, token, *messages)
    return refusal_in(error.value)


def send(channel: grpc.Channel, method: str, token: str, *messages: bytes) -> None:
    path, metadata = f"/{SERVICE.full_name}/{method}", token_metadata(token)
    if method in STREAMS:
        stream: Callable[..., Iterator[bytes]] = channel.stream_stream(path)
        list(stream(iter(messages), metadata=metadata, timeout=TIMEOUT_S))
    else:
        unary: Callable[..., bytes] = channel.unary_unary(path)
        unary(*messages, metadata=metadata, timeout=TIMEOUT_S)


def named(method: str, name: str) -> bytes:
    """The beginning of a request about a table."""
    field = bytes_field(1, name.encode())
    return bytes_field(1, field) if method == "CreateTable" else field


def broken_within(method: str) -> bytes:
    """A field that protobuf rejects as corrupt if it parses it, but not if it skips it."""
    if method == "CreateTable":
        return bytes_field(1, bytes_field(4, BROKEN))
    described = replay_pb2.DESCRIPTOR.message_types_by_name[f"{method}Request"]
    inner = [field.number for field in described.fields if field.message_type is not None]
    texts = [field.number for field in described.fields if field.type == field.TYPE_STRING and field.name != "table"]
    return b"".join(bytes_field(number, BROKEN) for number in inner + texts)


@pytest.mark.parametrize("method", TOO_LITTLE)
def test_who_may_not_is_refused_before_the_rest_is_looked_at(channel: grpc.Channel, method: str) -> None:
    message = named(method, NAME) + broken_within(method)
    assert refusal_of(channel, method, TOO_LITTLE[method], message).reason == "PERMISSION_DENIED"


@pytest.mark.parametrize(
    ("token", "reason"),
    [("", "UNAUTHENTICATED"), (WRONG, "UNAUTHENTICATED"), (EXPIRED, "UNAUTHENTICATED"), (OTHER, "PERMISSION_DENIED")],
)
@pytest.mark.parametrize("method", ["Sample", ""])
@pytest.mark.parametrize("changes", [{}, {"table_uid": b"y" * 16}, {"table": f"{MINE}nobody"}], ids=str)
def test_who_may_not_does_not_learn_at_the_local_socket_which_tables_there_are(
    channel: grpc.Channel, method: str, token: str, reason: str, changes: dict[str, Any]
) -> None:
    stub, name = replay_pb2_grpc.ReplayServiceStub(channel), replay_pb2.DescribeTableRequest(table=NAME)
    table = stub.DescribeTable(name, metadata=token_metadata(ALL), timeout=TIMEOUT_S).table
    authorization = f"Bearer {token}" if token else ""
    with closing(FrameLink(table.socket)) as link:
        link.send(hello_for(table, method, authorization=authorization, **changes).SerializeToString())
        with pytest.raises(FrameRpcError) as error:
            link.answer()
    assert refusal_in(error.value).reason == reason


@pytest.mark.parametrize("method", ["CreateTable", "Insert", "Sample", "UpdatePriorities", "Learn"])
def test_who_may_is_told_that_it_is_broken(channel: grpc.Channel, method: str) -> None:
    refusal = refusal_of(channel, method, ALL, named(method, NAME) + broken_within(method))
    assert (refusal.reason, refusal.metadata["field"]) == ("INVALID_FIELD", "request")


@pytest.mark.parametrize("method", ["CreateTable", "DropTable", "Insert", "Write", "Sample", "Read", "Learn", "Stats"])
def test_of_two_names_the_one_that_counts_is_checked(channel: grpc.Channel, method: str) -> None:
    ours, theirs = named(method, NAME), named(method, THEIRS)
    refusal = refusal_of(channel, method, ALL, ours + theirs)
    assert (refusal.reason, refusal.metadata["table"]) == ("PERMISSION_DENIED", THEIRS)
    if method != "Stats":
        assert refusal_of(channel, method, ALL, theirs + ours + BROKEN).reason == "INVALID_FIELD"


def test_a_stream_is_not_led_to_another_table_later(channel: grpc.Channel) -> None:
    nothing = replay_pb2.LearnRequest(table=NAME).SerializeToString()
    refusal = refusal_of(channel, "Learn", ALL, nothing, b"", named("Learn", THEIRS))
    assert (refusal.reason, refusal.metadata["table"]) == ("PERMISSION_DENIED", THEIRS)


@pytest.mark.parametrize("update", [b"", bytes_field(1, bytes(8)) + bytes_field(2, bytes(8))])
def test_an_update_takes_the_right_to_write_whatever_is_in_it(channel: grpc.Channel, update: bytes) -> None:
    message = named("Learn", NAME) + bytes_field(3, update)
    assert refusal_of(channel, "Learn", READ, message).metadata["right"] == "write"


def test_more_names_than_there_can_be_tables_are_too_many(channel: grpc.Channel) -> None:
    refusal = refusal_of(channel, "Checkpoint", ADMIN, bytes_field(1, NAME.encode()) * 1025)
    assert (refusal.reason, refusal.metadata["limit"]) == ("TOO_LARGE", "1024")


PARTS = st.one_of(
    st.builds(bytes_field, st.integers(1, 11), st.binary(max_size=6)),
    st.builds(lambda text: bytes_field(1, text.encode()), st.text(max_size=4)),
    st.builds(lambda text: bytes_field(1, bytes_field(1, text.encode())), st.text(max_size=4)),
    st.builds(
        lambda number, bits: bytes([number << 3]) + bits,
        st.sampled_from([1, 10, 11]),
        st.sampled_from([b"\x01", b"\x80\x01"]),
    ),
    st.builds(lambda number: bytes([0x09]) + struct.pack("<d", number), st.floats()),
    st.sampled_from([b"\x8a\x80\x00\x01a", b"\x0b\x0a\x01x\x0c", b"\x8a\x80\x80\x80\x10\x01b"]),
)


@pytest.mark.parametrize(
    ("message_type", "paths"),
    [
        (replay_pb2.CreateTableRequest, ["config.name"]),
        (replay_pb2.LearnRequest, ["table", "update", "charge", "refund"]),
        (replay_pb2.StatsRequest, ["table"]),
    ],
)
@given(parts=st.lists(PARTS, max_size=5))
def test_what_is_read_first_is_what_is_read_later(
    message_type: type[Message], paths: list[str], parts: list[bytes]
) -> None:
    data = b"".join(parts)
    try:
        whole = message_type.FromString(data)
    except Exception:  # parsing would fail after the check
        return
    first = only(message_type, *paths).FromString(data)
    assert [seen(first, path) for path in paths] == [seen(whole, path) for path in paths]


def seen(message: Message, path: str) -> object:
    """The text or number of a field, or whether a message is present."""
    *within, name = path.split(".")
    for part in within:
        message = getattr(message, part)
    value = getattr(message, name)
    return value if isinstance(value, str | int) else message.HasField(name)
