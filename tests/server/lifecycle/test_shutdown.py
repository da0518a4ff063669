"""Shutdown: waiting calls are refused, running calls finish, nothing is left behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from replay_proto.v1 import replay_pb2

from tests.support.caller import CALL_TIMEOUT_S, CalledTable, Caller, LearnStream, WriteStream, make_draw, wire_only
from tests.support.deadlines import wait_until
from tests.support.refusals import code_of, refused
from tests.support.server_process import ServerProcess

ALL_DATA_PATHS = True

StartServer = Callable[..., ServerProcess]
Call = Callable[[ServerProcess], Caller]
WRITER = b"0123456789abcdef"


@wire_only
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_server_that_is_told_to_end_exits_with_0_and_leaves_nothing(
    start_server: StartServer, call: Call, tmp_path: Path, number: signal.Signals
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    server = start_server("--memory-dir", str(memory))
    call(server).create().insert(range(10))
    assert len(list(memory.iterdir())) == 1
    server.process.send_signal(number)
    assert server.wait() == 0
    assert list(memory.iterdir()) == []
    assert "Traceback" not in server.log()


def test_calls_that_wait_are_sent_away(start_server: StartServer, call: Call) -> None:
    server = start_server()
    table = call(server).create()
    streams = [LearnStream(table) for _ in range(3)]
    for stream in streams:
        stream.send(draw=make_draw(1, wait_s=CALL_TIMEOUT_S))
    request = replay_pb2.SampleRequest(table=table.name, draw=make_draw(1, wait_s=CALL_TIMEOUT_S))
    samples = [table.stub.Sample.future(request) for _ in range(3)]
    wait_until(lambda: table.stats().waiting == 6, "all of them wait")
    server.process.send_signal(signal.SIGTERM)
    for stream in streams:
        with refused("SHUTTING_DOWN"):
            stream.receive()
    for sample in samples:
        with refused("SHUTTING_DOWN"):
            sample.result()
    assert server.wait() == 0
    assert "Traceback" not in server.log()


def test_idle_streams_do_not_hold_up_the_end_for_long(start_server: StartServer, call: Call) -> None:
    server = start_server("--drain-s", "0.2")
    table = call(server).create()
    table.insert(range(10))
    learner, writer = LearnStream(table), WriteStream(table, WRITER)
    learner.ask(draw=make_draw(1))
    writer.write([1], 1)
    began = time.monotonic()
    assert server.terminate() == 0
    assert time.monotonic() - began < 10
    for stream in (learner, writer):
        with pytest.raises(grpc.RpcError) as error:
            stream.receive()
        assert code_of(error.value) in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    assert "Traceback" not in server.log()


@wire_only
def test_streams_at_work_may_end_within_the_drain(start_server: StartServer, call: Call) -> None:
    server = start_server("--drain-s", "30")
    table = call(server).create()
    table.insert(range(10))
    stream = LearnStream(table)
    stream.ask(draw=make_draw(1))
    server.process.send_signal(signal.SIGTERM)
    server.wait_for_log("stopping")
    answer, _ = stream.ask(draw=make_draw(3))
    assert len(answer.batches) == 1
    stream.close()
    assert list(stream.call) == []
    assert server.wait() == 0


def test_new_calls_are_not_taken_while_it_drains(start_server: StartServer, call: Call) -> None:
    server = start_server("--drain-s", "30")
    table = call(server).create()
    table.insert(range(10))
    stream = LearnStream(table)
    stream.ask(draw=make_draw(1))
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: _refuses_calls(table), "calls are refused")
    stream.close()
    assert server.wait() == 0


def _refuses_calls(table: CalledTable) -> bool:
    try:
        table.describe()
    except grpc.RpcError as error:
        # gRPC itself replies: with CANCELLED if the connection already existed.
        return code_of(error) in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    return False


@wire_only
def test_health_says_that_it_no_longer_serves(start_server: StartServer, call: Call) -> None:
    server = start_server("--drain-s", "30")
    caller = call(server)
    health = health_pb2_grpc.HealthStub(caller.channel)
    watching = health.Watch(health_pb2.HealthCheckRequest(), timeout=CALL_TIMEOUT_S)
    assert next(watching).status == health_pb2.HealthCheckResponse.SERVING
    server.process.send_signal(signal.SIGTERM)
    assert next(watching).status == health_pb2.HealthCheckResponse.NOT_SERVING
    watching.cancel()
    assert server.wait() == 0


@wire_only
def test_a_second_signal_does_not_break_the_end(start_server: StartServer, call: Call, tmp_path: Path) -> None:
    server = start_server("--drain-s", "0.5", "--data-dir", str(tmp_path / "data"))
    table = call(server).create()
    table.insert(range(10))
    stream = LearnStream(table)
    stream.ask(draw=make_draw(1))
    server.process.send_signal(signal.SIGTERM)
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    server.restart()
    assert call(server).table(table.name).read(range(10)).values.tolist() == list(range(10))
