"""The local socket: admission, misbehaving clients, shutdown."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from replay_proto.v1 import replay_pb2
from replay_server.flow.bounds import Bounds

from tests.server.rpc.test_hostile_messages import NO_MESSAGES
from tests.support.caller import (
    SAME_HOST,
    CalledTable,
    Caller,
    float64,
    int64,
    make_draw,
    make_update,
    wire_only,
)
from tests.support.deadlines import wait_until
from tests.support.frame_stub import HEAD, STATUS, FrameLink, FrameRpcError, greeted, hello_for
from tests.support.refusals import refused
from tests.support.server_process import ServerProcess

NewTable = Callable[..., CalledTable]
StartServer = Callable[..., ServerProcess]
Call = Callable[[ServerProcess], Caller]
METHODS = ("Learn", "Sample", "UpdatePriorities")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests over the socket unless they specify a data path."""
    given = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "data_path" in metafunc.fixturenames and "data_path" not in given:
        metafunc.parametrize("data_path", [SAME_HOST], indirect=True, scope="session")


@pytest.fixture
def filled(new_table: NewTable) -> CalledTable:
    """A table with rows."""
    table = new_table(capacity=1000)
    table.insert(np.arange(1000))
    return table


@pytest.fixture
def link(filled: CalledTable) -> Iterator[FrameLink]:
    """A connection on which nothing has been sent."""
    opened = FrameLink(filled.describe().socket)
    yield opened
    opened.close()


def draw_request(table: CalledTable, batch_size: int = 10, **draw: object) -> bytes:
    """A request for Sample. The same request for Learn differs only in the field number of ``draw``."""
    return replay_pb2.SampleRequest(table=table.name, draw=make_draw(batch_size, **draw)).SerializeToString()


def learn_request(table: CalledTable, batch_size: int = 10, **draw: object) -> bytes:
    return replay_pb2.LearnRequest(table=table.name, draw=make_draw(batch_size, **draw)).SerializeToString()


def assert_ended(link: FrameLink) -> None:
    with pytest.raises((EOFError, OSError)):
        link.receive()


# The hello.


@pytest.mark.parametrize("method", METHODS)
def test_a_hello_is_answered_by_the_id_of_the_server(filled: CalledTable, link: FrameLink, method: str) -> None:
    link.send(hello_for(filled.describe(), method).SerializeToString())
    assert replay_pb2.FrameWelcome.FromString(link.answer()).owner_id == filled.describe().owner_id


@pytest.mark.parametrize(
    ("changes", "reason", "metadata"),
    [
        ({"method": "Insert"}, "INVALID_FIELD", {"field": "method", "got": "'Insert'"}),
        ({"method": "learn"}, "INVALID_FIELD", {"field": "method"}),
        ({"table": "nobody"}, "TABLE_NOT_FOUND", {"table": "nobody"}),
        ({"table": ""}, "TABLE_NOT_FOUND", {"table": ""}),
        ({"table_uid": b"y" * 16}, "TABLE_REPLACED", {}),
        ({"table_uid": b"y"}, "TABLE_REPLACED", {}),
        ({"trace_context": {"baggage": "x" * 8192}}, "INVALID_FIELD", {"field": "trace_context"}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_hello_that_is_wrong_is_refused_and_the_connection_ends(
    filled: CalledTable, link: FrameLink, changes: dict[str, object], reason: str, metadata: dict[str, str]
) -> None:
    method = str(changes.get("method", "Sample"))
    others = {name: value for name, value in changes.items() if name != "method"}
    link.send(hello_for(filled.describe(), method, **others).SerializeToString())
    with contextlib.suppress(OSError):  # it may have been refused already
        link.send(draw_request(filled))
    with refused(reason, **metadata) as refusal:
        link.answer()
    assert filled.describe().owner_id.hex() not in refusal.metadata.get("got", ""), "what was sent is not repeated"
    assert_ended(link)
    assert filled.stats().sampled == 0


@pytest.mark.parametrize("owner_id", [b"", b"x" * 16, b"x" * 10_000], ids=len)
@pytest.mark.parametrize("method", ["Sample", ""])
def test_who_looks_for_another_server_is_refused_at_the_socket(
    filled: CalledTable, link: FrameLink, method: str, owner_id: bytes
) -> None:
    link.send(hello_for(filled.describe(), method, owner_id=owner_id).SerializeToString())
    with refused("INVALID_FIELD", field="owner_id"):
        link.answer()
    assert_ended(link)


def test_who_only_asks_is_told_which_server_this_is(filled: CalledTable, link: FrameLink) -> None:
    description = filled.describe()
    link.send(hello_for(description, "").SerializeToString())
    assert replay_pb2.FrameWelcome.FromString(link.answer()).owner_id == description.owner_id
    assert_ended(link)


def test_the_socket_takes_so_many_connections(start_server: StartServer, call: Call) -> None:
    table = call(start_server("--max-local-connections", "3")).create()
    description = table.describe()
    links = [greeted(description, method) for method in METHODS]
    with refused("TOO_LARGE", limit=3, got=4, setting="max_local_connections of the server"):
        greeted(description, "Learn")
    links.pop().close()
    wait_until(lambda: _is_greeted(description), "there is room again")
    for link in links:
        link.close()


def _is_greeted(description: replay_pb2.TableDescription) -> bool:
    try:
        greeted(description, "Learn").close()
    except FrameRpcError:
        return False
    return True


def test_what_is_no_hello_is_refused(link: FrameLink) -> None:
    link.send(b"\xff" * 40)
    with refused("INVALID_FIELD", field="hello"):
        link.answer()
    assert_ended(link)


def test_a_request_without_a_hello_is_none(filled: CalledTable, link: FrameLink) -> None:
    link.send(draw_request(filled))
    with pytest.raises(FrameRpcError):
        link.answer()
    assert_ended(link)
    assert filled.stats().sampled == 0


@pytest.mark.parametrize(
    "garbage",
    [
        HEAD.pack(5, 2) + b"abcde",
        HEAD.pack(0, 2**32 - 1),
        HEAD.pack(3, STATUS) + b"abc",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\xff" * 1000,
    ],
)
def test_who_speaks_something_else_is_cut_off(link: FrameLink, garbage: bytes) -> None:
    link.socket.sendall(garbage)
    assert_ended(link)


@pytest.mark.parametrize("size", [(1 << 20) + 1, (64 << 20) + 1, 2**32 - 1])
def test_a_hello_that_is_too_long_is_not_received(link: FrameLink, size: int) -> None:
    link.socket.sendall(HEAD.pack(size, 0) + b"the first of it")
    assert_ended(link)


def test_a_frame_that_is_too_long_is_refused_before_it_came(filled: CalledTable) -> None:
    """A frame without rows may contain only the keys and priorities of one call."""
    longest = (1 << 20) + 16 * Bounds.max_rows_per_call
    link = greeted(filled.describe(), "UpdatePriorities")
    link.socket.sendall(HEAD.pack(longest + 1, 0) + b"the first of it")
    with refused("TOO_LARGE", limit=longest, got=longest + 1, setting="max_rows_per_call of the server"):
        link.answer()
    assert_ended(link)


def test_requests_before_one_that_is_too_long_are_answered(filled: CalledTable) -> None:
    link = greeted(filled.describe(), "Learn")
    for _ in range(3):
        link.send(learn_request(filled))
    link.socket.sendall(HEAD.pack(2**32 - 1, 0))
    for _ in range(3):
        assert len(replay_pb2.LearnResponse.FromString(link.answer()).batches) == 1
    with refused("TOO_LARGE"):
        link.answer()
    assert_ended(link)


def test_a_sender_of_a_message_that_is_too_long_is_not_left_sending_it(filled: CalledTable) -> None:
    link = greeted(filled.describe(), "Learn")
    with contextlib.suppress(OSError):
        link.send(bytes((64 << 20) + 1))
    with refused("TOO_LARGE"):
        link.answer()


# Calls.


@pytest.mark.parametrize("method", ["Sample", "UpdatePriorities"])
def test_a_call_that_is_refused_leaves_the_connection_whole(filled: CalledTable, method: str) -> None:
    link = greeted(filled.describe(), method)
    update = replay_pb2.UpdatePrioritiesRequest(table=filled.name, table_uid=filled.uid, update=make_update([0], [3.0]))
    good = {"Sample": draw_request(filled), "UpdatePriorities": update.SerializeToString()}[method]
    for _ in range(3):
        link.send(b"\xff" * 9)
        with refused("INVALID_FIELD", field="request"):
            link.answer()
        link.send(good)
        assert link.answer()
    link.close()


@pytest.mark.parametrize(
    ("what", "method"),
    [*((what, "Sample") for what in NO_MESSAGES), ("ones", "Learn"), ("ones", "UpdatePriorities")],
)
def test_bytes_that_are_no_message_are_refused_and_change_nothing(filled: CalledTable, method: str, what: str) -> None:
    before = filled.state()
    link = greeted(filled.describe(), method)
    link.send(NO_MESSAGES[what])
    with refused("INVALID_FIELD", field="request"):
        link.answer()
    link.close()
    assert filled.state() == before


def test_a_refusal_ends_a_learners_connection(filled: CalledTable) -> None:
    link = greeted(filled.describe(), "Learn")
    link.send(learn_request(filled, 0))
    with contextlib.suppress(OSError):  # it may have been refused already
        link.send(learn_request(filled))
    with refused("INVALID_FIELD", field="batch_size"):
        link.answer()
    assert_ended(link)


def test_requests_may_come_byte_by_byte(filled: CalledTable) -> None:
    link = FrameLink(filled.describe().socket)
    hello, request = hello_for(filled.describe(), "Sample").SerializeToString(), draw_request(filled)
    for byte in HEAD.pack(len(hello), 0) + hello + HEAD.pack(len(request), 0) + request:
        link.socket.sendall(bytes([byte]))
    assert replay_pb2.FrameWelcome.FromString(link.answer()).owner_id == filled.describe().owner_id
    assert len(replay_pb2.SampleResponse.FromString(link.answer()).batch.keys) == 80
    link.close()


def test_many_requests_in_one_piece_are_answered_in_order(filled: CalledTable) -> None:
    link = greeted(filled.describe(), "Sample")
    frames = [draw_request(filled, size) for size in range(1, 300)]
    link.socket.sendall(b"".join(HEAD.pack(len(frame), 0) + frame for frame in frames))
    for size in range(1, 300):
        assert len(replay_pb2.SampleResponse.FromString(link.answer()).batch.keys) == 8 * size
    link.close()


def test_large_updates_are_taken(filled: CalledTable) -> None:
    """8 MiB: more than a connection's queue accepts before reading stops."""
    link = greeted(filled.describe(), "UpdatePriorities")
    count = Bounds.max_rows_per_call
    update = replay_pb2.PriorityUpdate(keys=int64(np.full(count, 5)), priorities=float64(np.arange(count)))
    for _ in range(16):
        request = replay_pb2.UpdatePrioritiesRequest(table=filled.name, table_uid=filled.uid, update=update)
        link.send(request.SerializeToString())
    for _ in range(16):
        assert replay_pb2.UpdatePrioritiesResponse.FromString(link.answer()).result.updated == 1
    assert filled.read([5]).priorities.tolist() == [float(count - 1)]
    link.close()


def test_calls_over_the_socket_are_counted_as_those_of_grpc(caller: Caller, filled: CalledTable) -> None:
    before = caller.method("Sample")
    link = greeted(filled.describe(), "Sample")
    link.send(draw_request(filled))
    link.answer()
    link.send(draw_request(filled, 0))
    with refused("INVALID_FIELD"):
        link.answer()
    after = caller.method("Sample")
    assert (after.calls - before.calls, after.errors - before.errors, after.active) == (1, 1, before.active)
    link.close()


# Clients that misbehave.


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 20])
def test_a_client_that_vanishes_amid_a_frame_harms_nobody(
    filled: CalledTable, server: ServerProcess, size: int
) -> None:
    before = psutil.Process(server.pid).num_fds()
    for method in METHODS:
        link = greeted(filled.describe(), method)
        link.socket.sendall((HEAD.pack(100, 0) + bytes(100))[:size])
        link.close()
    wait_until(lambda: psutil.Process(server.pid).num_fds() <= before, "the connections are closed")
    assert len(filled.sample(5).keys) == 5


@pytest.mark.parametrize("method", ["Learn", "Sample"])
def test_a_client_that_vanishes_while_it_waits_no_longer_does(caller: Caller, table: CalledTable, method: str) -> None:
    others = caller.method(method).active
    links = [greeted(table.describe(), method) for _ in range(5)]
    for link in links:
        link.send({"Learn": learn_request, "Sample": draw_request}[method](table, 5, wait_s=1e300))
    wait_until(lambda: table.stats().waiting == 5, "all of them wait")
    for link in links:
        link.close()
    wait_until(lambda: table.stats().waiting == 0, "nobody waits")
    wait_until(lambda: caller.method(method).active <= others, "no call is open")


def test_a_client_that_vanishes_amid_a_large_gather_harms_nobody(new_table: NewTable, caller: Caller) -> None:
    table = new_table(capacity=1000)
    table.insert(np.arange(1000))
    for _ in range(10):
        link = greeted(table.describe(), "Sample")
        link.send(draw_request(table, 1_000_000))
        link.close()
    wait_until(lambda: caller.method("Sample").active == 0, "no call is open")
    assert len(table.sample(5).keys) == 5


def test_a_client_that_does_not_read_is_held_up_and_nobody_else_is(new_table: NewTable, server: ServerProcess) -> None:
    """It requests 200 MB and reads nothing."""
    table = new_table(capacity=10_000)
    table.insert(np.arange(10_000))
    resident = server.resident_bytes
    link, request = greeted(table.describe(), "Learn"), learn_request(table, 14_000)
    for _ in range(500):
        link.send(request)
    wait_until(lambda: table.stats().sampled > 0, "it is served")
    for _ in range(100):
        table.sample(10)
    assert (table.stats().sampled - 1000) / 14_000 * 28 * 14_000 < 16 << 20, "answers pile up"
    assert server.resident_bytes - resident < 64 << 20
    for _ in range(100):
        assert len(replay_pb2.LearnResponse.FromString(link.answer()).rows) == 28 * 14_000
    link.close()


@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_a_client_that_sends_without_end_behind_a_wait_is_held_up(
    table: CalledTable, server: ServerProcess, size: int
) -> None:
    """The server reads only a limited number of frames, even empty ones."""
    link = greeted(table.describe(), "Sample")
    link.send(draw_request(table, wait_s=60.0))
    wait_until(lambda: table.stats().waiting == 1, "it waits")
    resident = server.resident_bytes
    flood = (HEAD.pack(size, 0) + bytes(size)) * max(1, (1 << 18) // (size + HEAD.size))
    sent, most, rest = 0, 32 << 20, memoryview(flood)
    while sent < most and select.select([], [link.socket], [], 0.5)[1]:
        count = link.socket.send(rest, socket.MSG_DONTWAIT)
        sent, rest = sent + count, rest[count:] or memoryview(flood)
    assert sent < most, "the server never stopped reading"
    assert server.resident_bytes - resident < 64 << 20
    assert table.describe().size == 0
    link.close()


def test_many_connections_are_served_and_leave_nothing(filled: CalledTable, server: ServerProcess) -> None:
    process = psutil.Process(server.pid)
    description = filled.describe()
    descriptors, threads = process.num_fds(), process.num_threads()
    links = [greeted(description, METHODS[number % 2]) for number in range(300)]
    requests = {"Learn": learn_request(filled), "Sample": draw_request(filled)}
    for number, link in enumerate(links):
        link.send(requests[METHODS[number % 2]])
    for link in links:
        assert link.answer()
    assert process.num_fds() >= 300
    for link in links:
        link.close()
    wait_until(lambda: process.num_fds() <= descriptors, "the connections are closed")
    assert process.num_threads() <= threads + 1


# Its beginning and its end.


def test_the_socket_is_its_owners_alone(filled: CalledTable) -> None:
    assert os.stat(filled.describe().socket).st_mode & 0o777 == 0o600


def test_a_socket_that_a_killed_server_left_is_taken_over(
    start_server: StartServer, call: Call, tmp_path: Path
) -> None:
    server = start_server("--data-dir", str(tmp_path / "data"))
    table = call(server).create()
    table.insert(range(5))
    server.kill()
    assert (tmp_path / "data" / "tables" / ".socket").is_socket()
    server.restart()
    with Caller(server.address, SAME_HOST) as caller:
        assert len(table.through(caller).sample(3).keys) == 3
        assert table.through(caller).stats().sampled_same_host == 3
    server.terminate()
    assert not (tmp_path / "data" / "tables" / ".socket").exists()


def test_a_path_longer_than_a_sockets_address_does(start_server: StartServer, tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30) / ("longer" * 20)
    server = start_server("--data-dir", str(folder))
    with Caller(server.address, SAME_HOST) as caller:
        table = caller.create()
        assert len(table.describe().socket) > 200
        table.insert(range(5))
        assert set(table.sample(10).values) <= set(range(5))
        assert table.stats().sampled_same_host == 10


@wire_only
def test_where_no_socket_can_be_made_everything_else_works(
    start_server: StartServer, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "data" / "tables" / ".socket").mkdir(parents=True)
    (tmp_path / "data" / "tables" / ".socket" / "in the way").touch()
    server = start_server("--data-dir", str(tmp_path / "data"))
    table = call(server).create()
    table.insert(range(5))
    assert len(table.sample(3).keys) == 3
    server.wait_for_log("cannot listen on")
    assert server.terminate() == 0


def test_idle_connections_are_told_and_do_not_hold_up_the_end(start_server: StartServer, call: Call) -> None:
    server = start_server("--drain-s", "30")
    table = call(server).create()
    table.insert(range(10))
    silent, links = FrameLink(table.describe().socket), [greeted(table.describe(), method) for method in METHODS]
    table.caller.close()
    began = time.monotonic()
    assert server.terminate() == 0
    assert time.monotonic() - began < 10
    for link in links:
        with refused("SHUTTING_DOWN"):
            link.answer()
        assert_ended(link)
        link.close()
    assert_ended(silent)
    silent.close()
    assert "Traceback" not in server.log()


def test_waiting_connections_are_told_and_do_not_hold_up_the_end(start_server: StartServer, call: Call) -> None:
    server = start_server("--drain-s", "30")
    table = call(server).create()
    links = [greeted(table.describe(), method) for method in ("Learn", "Sample")]
    links[0].send(learn_request(table, wait_s=1e300))
    links[1].send(draw_request(table, wait_s=1e300))
    wait_until(lambda: table.stats().waiting == 2, "both wait")
    table.caller.close()
    began = time.monotonic()
    assert server.terminate() == 0
    assert time.monotonic() - began < 10
    for link in links:
        with refused("SHUTTING_DOWN"):
            link.answer()
        link.close()
    assert "Traceback" not in server.log()


def test_a_learner_that_never_pauses_does_not_hold_up_the_end(start_server: StartServer, call: Call) -> None:
    """A request is always in flight: the server answers those from before the signal, and no others."""
    server = start_server("--drain-s", "30")
    table = call(server).create()
    table.insert(range(10))
    link, request = greeted(table.describe(), "Learn"), learn_request(table)
    table.caller.close()
    for _ in range(50):
        link.send(request)
    for _ in range(100):
        link.answer()
        link.send(request)
    server.process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    with refused("SHUTTING_DOWN"):
        while link.answer():
            with contextlib.suppress(OSError):
                link.send(request)
    assert server.wait() == 0
    assert time.monotonic() - began < 10
    link.close()


def test_who_does_not_read_holds_up_the_end_for_the_drain_and_no_longer(start_server: StartServer, call: Call) -> None:
    server = start_server("--drain-s", "0.5")
    table = call(server).create(capacity=10_000)
    table.insert(np.arange(10_000))
    link = greeted(table.describe(), "Learn")
    for _ in range(50):
        link.send(learn_request(table, 14_000))
    wait_until(lambda: table.stats().sampled > 0, "it is served")
    table.caller.close()
    began = time.monotonic()
    assert server.terminate() == 0
    assert time.monotonic() - began < 10
    link.close()
    assert "Traceback" not in server.log()
