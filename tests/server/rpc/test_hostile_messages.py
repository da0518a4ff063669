"""Malformed requests are refused and leave tables unchanged."""

from __future__ import annotations

import math
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from replay_proto.v1 import replay_pb2

from tests.support.caller import CalledTable, Caller, float64
from tests.support.examples import examples
from tests.support.refusals import code_of, refusal_in
from tests.support.rows import rows_of
from tests.support.server_process import ServerProcess
from tests.support.small_disk import with_small_disk
from tests.support.victim import NAME, WRITER, good_request, make_victim
from tests.support.wire import (
    END_GROUP,
    FIXED32,
    FIXED64,
    METHODS,
    SERVICE,
    START_GROUP,
    STREAMS,
    VARINT,
    bytes_field,
    call_raw,
    call_raw_one_by_one,
    tag,
    varint,
)
from tests.support.wire_runs import one_run
from tools.faults.mutations import mutated

DIFFERENTLY_READ = ("Insert", "Learn", "Stats")
"""Methods that represent all others: a message with rows, one on a stream, and a plain one."""
EXAMPLES = settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))


def examples_of(method: str) -> settings:
    """Fewer examples for methods whose messages are parsed like those of another method."""
    return EXAMPLES if method in DIFFERENTLY_READ else settings(EXAMPLES, max_examples=examples(4))


@pytest.fixture(scope="module")
def hostile_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with low memory limits."""
    folder: Path = tmp_path_factory.mktemp("hostile")
    process = ServerProcess(
        folder / "log",
        *("--max-request-mb", "2", "--max-reply-mb", "2", "--memory-dir", str(folder / "memory")),
        *("--checkpoint-dir", str(folder / "checkpoints"), "--keep-checkpoints", "2"),
        within=with_small_disk(folder / "memory", 48),
    )
    yield process
    log = process.log()
    assert process.terminate() == 0
    assert "Traceback" not in log


@pytest.fixture(scope="module")
def hostile_caller(hostile_server: ServerProcess) -> Iterator[Caller]:
    """A caller of that server."""
    with Caller(hostile_server.address) as made:
        yield made


@pytest.fixture
def victim(hostile_caller: Caller) -> CalledTable:
    """A table with rows and a history."""
    return make_victim(hostile_caller)


def send(table: CalledTable, method: str, message: bytes) -> bool:
    """Send bytes, and return whether they were answered. A refusal must be typed and change nothing."""
    before = table.state()
    try:
        call_raw(table.caller.channel, method, message)
    except grpc.RpcError as error:
        refusal_in(error)
        assert table.state() == before
        return False
    return True


def assert_usable(table: CalledTable) -> None:
    """Check that the server still works: a recreated table accepts rows and returns them."""
    again = make_victim(table.caller)
    assert set(again.sample(20).values) <= {*range(9, 20), 77}


# Bytes that are not a valid message.

NO_MESSAGES = {
    "ones": b"\xff" * 40,
    "a tag that never ends": b"\x80" * 40,
    "a tag that is cut": b"\x80",
    "wire type 6": tag(1, 6) + b"\x01",
    "wire type 7": tag(1, 7) + b"\x01",
    "the end of a group that never began": tag(1, END_GROUP),
    "a group that never ends": tag(1, START_GROUP) * 3,
    "many groups that never end": tag(1, START_GROUP) * 100_000,
    "a length without content": bytes_field(1, b"", claimed_size=1),
    "a huge length": bytes_field(1, b"abc", claimed_size=2**31 - 1),
    "a length of 63 bits": bytes_field(1, b"abc", claimed_size=2**63 - 1),
    "a length of 64 bits": bytes_field(1, b"abc", claimed_size=2**64 - 1),
    "a length of 70 bits": bytes_field(1, b"abc", claimed_size=2**70 - 1),
    "a fixed64 that is cut": tag(9, FIXED64) + b"1234567",
    "a fixed32 that is cut": tag(9, FIXED32) + b"123",
    "rows of a huge length": bytes_field(15, b"abc", claimed_size=2**62),
    "rows that are cut by one byte": bytes_field(15, b"abc", claimed_size=4),
}


@pytest.mark.parametrize(
    ("what", "method"),
    [
        *((what, method) for what in NO_MESSAGES for method in DIFFERENTLY_READ),
        *(("a tag that is cut", method) for method in METHODS if method not in DIFFERENTLY_READ),
    ],
)
def test_bytes_that_are_no_message_are_refused(victim: CalledTable, method: str, what: str) -> None:
    before = victim.state()
    with pytest.raises(grpc.RpcError) as error:
        call_raw(victim.caller.channel, method, NO_MESSAGES[what])
    refusal = refusal_in(error.value)
    assert (refusal.reason, refusal.metadata["field"]) == ("INVALID_FIELD", "request")
    assert victim.state() == before


@pytest.mark.parametrize("method", sorted({*METHODS} - {"ListTables", "ListCheckpoints", "CreateTable", "GetShards"}))
@pytest.mark.parametrize("name", [b"\xff\xfe", b"vic\xc0\x80tim", b"\xed\xa0\x80"])
def test_a_name_that_is_no_text_is_refused(victim: CalledTable, method: str, name: bytes) -> None:
    assert not send(victim, method, bytes_field(1, name))


@pytest.mark.parametrize("method", METHODS)
def test_a_message_that_is_cut_anywhere_is_answered_or_refused(victim: CalledTable, method: str) -> None:
    message = good_request(method, victim).SerializeToString()
    cuts = 40 if method in DIFFERENTLY_READ else 10
    for end in range(0, len(message), max(1, len(message) // cuts)):
        if send(victim, method, message[:end]):
            victim = make_victim(victim.caller)
            message = good_request(method, victim).SerializeToString()
    assert_usable(victim)


@pytest.mark.parametrize("method", METHODS)
def test_fields_of_another_wire_type_are_unknown_fields(victim: CalledTable, method: str) -> None:
    """Protobuf skips these, so the field is missing, and requests that need it are refused."""
    contents = {VARINT: varint(2**64 - 1), FIXED64: bytes(8), FIXED32: bytes(4)}
    names_no_table = b"".join(
        tag(number, wire) + content for number in range(1, 16) for wire, content in contents.items()
    )
    answered = send(victim, method, names_no_table)
    assert answered == (method in ("ListTables", "ListCheckpoints", "Stats", "GetShards"))


@pytest.mark.parametrize("method", METHODS)
def test_fields_that_are_not_known_are_skipped(victim: CalledTable, method: str) -> None:
    unknown = tag(1000, VARINT) + b"\x05" + bytes_field(2000, b"of a later version") + tag(14, FIXED64) + bytes(8)
    assert send(victim, method, unknown + good_request(method, victim).SerializeToString() + unknown)


# Rows, which are parsed in place.


def insertion_with(*, before: bytes = b"", after: bytes = b"", table: CalledTable) -> bytes:
    """An insert of two rows without its rows field, with other bytes before and after it."""
    head = replay_pb2.InsertRequest(table=table.name, insertion=replay_pb2.Insertion(row_count=2))
    return before + head.SerializeToString() + after


def test_of_rows_that_come_twice_the_last_count(victim: CalledTable) -> None:
    first, last = (bytes_field(15, rows_of(np.array(values))) for values in ([1, 2], [3, 4]))
    call_raw(victim.caller.channel, "Insert", insertion_with(before=first, after=last, table=victim))
    assert victim.read(victim.live_keys()[-2:]).values.tolist() == [3, 4]


def test_rows_may_come_first(victim: CalledTable) -> None:
    rows = bytes_field(15, rows_of(np.array([1, 2])))
    call_raw(victim.caller.channel, "Insert", insertion_with(before=rows, table=victim))
    assert victim.read(victim.live_keys()[-2:]).values.tolist() == [1, 2]


def test_rows_whose_tag_is_longer_than_it_needs_to_be_are_rows(victim: CalledTable) -> None:
    content = rows_of(np.array([1, 2]))
    rows = bytes([0xFA, 0x80, 0x00]) + varint(len(content)) + content
    call_raw(victim.caller.channel, "Insert", insertion_with(before=rows, table=victim))
    assert victim.read(victim.live_keys()[-2:]).values.tolist() == [1, 2]


def test_rows_that_come_as_a_number_are_no_rows(victim: CalledTable) -> None:
    number = tag(15, VARINT) + varint(2**60)
    assert not send(victim, "Insert", insertion_with(before=number, table=victim))


def test_of_two_heads_the_later_fields_count(victim: CalledTable) -> None:
    wrong = replay_pb2.InsertRequest(table="nobody", insertion=replay_pb2.Insertion(row_count=9)).SerializeToString()
    rows = bytes_field(15, rows_of(np.array([1, 2])))
    call_raw(victim.caller.channel, "Insert", insertion_with(before=wrong, after=rows, table=victim))
    assert victim.read(victim.live_keys()[-2:]).values.tolist() == [1, 2]


# Random bytes, and corrupted messages.


@pytest.mark.parametrize("method", METHODS)
def test_random_bytes_are_answered_or_refused(hostile_caller: Caller, method: str) -> None:
    victim = make_victim(hostile_caller)

    @examples_of(method)
    @given(st.binary(max_size=200))
    def try_bytes(message: bytes) -> None:
        send(victim, method, message)

    try_bytes()
    assert_usable(victim)


@pytest.mark.parametrize("method", METHODS)
def test_damaged_messages_are_answered_or_refused(hostile_caller: Caller, method: str) -> None:
    victim = make_victim(hostile_caller)

    @examples_of(method)
    @given(st.integers(0, 2**32))
    def try_damages(seed: int) -> None:
        nonlocal victim
        message = mutated(good_request(method, victim).SerializeToString(), random.Random(seed))
        if send(victim, method, message):
            victim = make_victim(hostile_caller)

    try_damages()
    assert_usable(victim)


NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, 1, -1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63)])
)
SOME_NUMBERS = st.one_of(st.integers(0, 30), st.sampled_from([0, 1, -1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63)]))
FLOATS = st.floats(width=64)
MOST_DRAWN = 1000
"""Maximum rows in a reply of this server; tests use far larger numbers."""


@EXAMPLES
@given(
    draw=st.builds(
        dict,
        batch_size=SOME_NUMBERS,
        beta=st.one_of(st.floats(0, 10), FLOATS),
        weight_norm=st.one_of(st.integers(0, 2), st.integers(-3, 9)),
        draw_mode=st.one_of(st.integers(0, 2), st.integers(-3, 9)),
    ),
    batches=SOME_NUMBERS,
)
@example(draw={"batch_size": 20, "beta": 0.5, "weight_norm": 1, "draw_mode": 2}, batches=3)
@example(draw={"batch_size": 1, "beta": 0.0, "weight_norm": 0, "draw_mode": 0}, batches=0)
def test_a_draw_of_any_numbers_is_answered_or_refused(
    hostile_caller: Caller, draw: dict[str, int | float], batches: int
) -> None:
    victim = make_victim(hostile_caller)
    request = replay_pb2.LearnRequest(table=NAME, batches=batches)
    for name, value in draw.items():
        setattr(request.draw, name, value)
    is_good = (
        1 <= draw["batch_size"] <= MOST_DRAWN
        and math.isfinite(draw["beta"])
        and draw["beta"] >= 0
        and draw["weight_norm"] in (0, 1, 2)
        and draw["draw_mode"] in (0, 1, 2)
    )
    sample = replay_pb2.SampleRequest(table=NAME, draw=request.draw)
    assert send(victim, "Sample", sample.SerializeToString()) is is_good
    many_are_good = is_good and 0 <= batches <= 1024 and batches * draw["batch_size"] <= MOST_DRAWN
    assert send(victim, "Learn", request.SerializeToString()) is many_are_good


@EXAMPLES
@given(
    count=NUMBERS,
    priorities=st.lists(FLOATS, max_size=3),
    sequence=NUMBERS,
    stream=st.integers(0, 2**64 - 1),
    writer=st.sampled_from([b"", b"x" * 16, WRITER, b"x"]),
    rows=st.sampled_from([rows_of(np.arange(n)) for n in range(4)]),
)
@example(count=2, priorities=[1.0, 2.0], sequence=1, stream=3, writer=b"x" * 16, rows=rows_of(np.arange(2)))
@example(count=3, priorities=[], sequence=1, stream=0, writer=b"x" * 16, rows=rows_of(np.arange(3)))
@example(count=1, priorities=[], sequence=1, stream=0, writer=WRITER, rows=rows_of(np.arange(1)))
def test_an_insert_of_any_numbers_is_answered_or_refused(
    hostile_caller: Caller, count: int, priorities: list[float], sequence: int, stream: int, writer: bytes, rows: bytes
) -> None:
    victim = make_victim(hostile_caller)
    insertion = replay_pb2.Insertion(
        row_count=count, priorities=float64(priorities), sequence=sequence, runs=one_run(count, stream, stream)
    )
    for method, kind in (("Insert", replay_pb2.InsertRequest), ("Write", replay_pb2.WriteRequest)):
        request = kind(table=NAME, writer_id=writer, insertion=insertion, rows=rows)
        if send(victim, method, request.SerializeToString()):
            is_repeated = writer == WRITER and sequence == 1  # the victim has this insert
            assert victim.describe().inserted == 21 + (0 if is_repeated else count)


# Streams, and connections that do not speak gRPC.


@pytest.mark.parametrize("method", STREAMS)
def test_what_a_stream_did_before_a_hostile_message_holds(victim: CalledTable, method: str) -> None:
    answers = call_raw_one_by_one(
        victim.caller.channel, method, [good_request(method, victim).SerializeToString(), b"\xff" * 10]
    )
    next(answers)
    with pytest.raises(grpc.RpcError) as error:
        next(answers)
    assert refusal_in(error.value).metadata["field"] == "request"
    if method == "Write":
        assert victim.read(victim.live_keys()[-2:]).values.tolist() == [0, 1]
    else:
        assert victim.read([12, 13]).priorities.tolist() == [3.0, 4.0]
    assert victim.caller.method(method).active == 0


@pytest.mark.parametrize("method", STREAMS)
def test_a_stream_that_says_nothing_ends_in_peace(victim: CalledTable, method: str) -> None:
    before = victim.state()
    assert call_raw(victim.caller.channel, method) == []
    assert victim.state() == before


@pytest.mark.parametrize("method", [method for method in METHODS if method not in STREAMS])
def test_of_several_messages_to_an_rpc_of_one_the_first_counts(victim: CalledTable, method: str) -> None:
    stream: Callable[..., Iterator[bytes]] = victim.caller.channel.stream_stream(f"/{SERVICE.full_name}/{method}")
    message = good_request(method, victim).SerializeToString()
    inserted = victim.describe().inserted
    assert len(list(stream(iter([message, b"\xff", message]), timeout=60.0))) == 1
    if method != "DropTable":
        assert victim.describe().inserted == inserted + (2 if method == "Insert" else 0)


def test_an_rpc_that_is_not_there_is_unimplemented(hostile_caller: Caller) -> None:
    unary: Callable[..., bytes] = hostile_caller.channel.unary_unary("/replay.v1.ReplayService/Forget")
    with pytest.raises(grpc.RpcError) as error:
        unary(b"", timeout=60.0)
    assert code_of(error.value) is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\0" * 1000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 1000],
)
def test_a_connection_that_speaks_something_else_harms_nobody(
    hostile_server: ServerProcess, victim: CalledTable, garbage: bytes
) -> None:
    before = victim.state()
    with socket.create_connection(("127.0.0.1", hostile_server.port), timeout=30.0) as connection:
        connection.sendall(garbage)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
    assert victim.state() == before
