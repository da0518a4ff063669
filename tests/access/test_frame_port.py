"""Who may call over the frame port, by token; and with what else it may not be offered."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message
from replay_client import PermissionDeniedError, ReplayClient
from replay_client.security import token_metadata
from replay_proto.v1 import replay_pb2, replay_pb2_grpc

from tests.client.conftest import COLUMNS
from tests.client.numbered import rows
from tests.support.access import (
    ALL,
    EXPIRED,
    MINE,
    OTHER,
    READ,
    WRITE,
    WRONG,
    Authority,
    tls_flags,
    write_usual_tokens,
)
from tests.support.caller import float64, make_draw, make_update, new_name, table_config
from tests.support.frame_stub import FrameLink, FrameRpcError
from tests.support.refusals import refusal_in
from tests.support.rows import rows_of
from tests.support.server_process import ServerProcess, run_to_its_end

TABLE = """
                  no     wrong  expired  read   write  all     other
                  token  token  token    only   only   rights  table
Sample            401    401    401      ok     403    ok      403
UpdatePriorities  401    401    401      403    ok     ok      403
Learn             401    401    401      ok     403    ok      403
Learn:update      401    401    401      403    403    ok      403
"""
"""What comes of each call, by method and caller: as over gRPC."""
CALLERS = {
    "no token": None,
    "wrong token": WRONG,
    "expired token": EXPIRED,
    "read only": READ,
    "write only": WRITE,
    "all rights": ALL,
    "other table": OTHER,
}
CODES = {"401": grpc.StatusCode.UNAUTHENTICATED, "403": grpc.StatusCode.PERMISSION_DENIED}
EXPECTED = {cells[0]: dict(zip(CALLERS, cells[1:], strict=True)) for cells in map(str.split, TABLE.splitlines()[3:])}


@dataclass(frozen=True)
class Target:
    """A table with a row."""

    name: str
    uid: bytes
    port: int


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with tokens and a frame port."""
    folder: Path = tmp_path_factory.mktemp("guarded")
    tokens = write_usual_tokens(folder / "tokens.toml")
    flags = ("--tokens", str(tokens), "--memory-dir", str(folder), "--frame-port", "0")
    process = ServerProcess(folder / "log", *flags, forked=True)
    yield process
    process.terminate()


@pytest.fixture
def target(guarded: ServerProcess) -> Iterator[Target]:
    with grpc.insecure_channel(guarded.address) as channel:
        stub, name, metadata = replay_pb2_grpc.ReplayServiceStub(channel), f"{MINE}{new_name()}", token_metadata(ALL)
        made = stub.CreateTable(replay_pb2.CreateTableRequest(config=table_config(name)), metadata=metadata).table
        insertion = replay_pb2.Insertion(row_count=1, priorities=float64([1.0]))
        stub.Insert(
            replay_pb2.InsertRequest(table=name, insertion=insertion, rows=rows_of(np.array([7]))),
            metadata=metadata,
        )
        yield Target(name, made.uid, made.frame_port)


def request_of(call: str, target: Target) -> Message:
    update = make_update([0], [1.0])
    requests: dict[str, Message] = {
        "Sample": replay_pb2.SampleRequest(table=target.name, draw=make_draw(1)),
        "UpdatePriorities": replay_pb2.UpdatePrioritiesRequest(table=target.name, table_uid=target.uid, update=update),
        "Learn": replay_pb2.LearnRequest(table=target.name, draw=make_draw(1)),
        "Learn:update": replay_pb2.LearnRequest(table=target.name, table_uid=target.uid, update=update),
    }
    return requests[call]


def hello_of(method: str, target: Target, token: str | None) -> bytes:
    authorization = dict(token_metadata(token)).get("authorization", "")
    return replay_pb2.FrameHello(
        method=method, table=target.name, table_uid=target.uid, authorization=authorization
    ).SerializeToString()


def outcome(call: str, target: Target, token: str | None) -> grpc.StatusCode | None:
    """The status that a call ends with; None if it is answered."""
    link = FrameLink(target.port)
    try:
        link.send(hello_of(call.partition(":")[0], target, token))
        assert link.answer() == b""
        link.send(request_of(call, target).SerializeToString())
        assert link.answer()
    except FrameRpcError as error:
        return refusal_in(error).code
    finally:
        link.close()
    return None


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("call", EXPECTED)
def test_each_caller_may_do_what_the_table_says(target: Target, call: str, caller: str) -> None:
    cell = EXPECTED[call][caller]
    assert outcome(call, target, CALLERS[caller]) is (None if cell == "ok" else CODES[cell])


@pytest.mark.parametrize("token", [None, WRONG, EXPIRED, OTHER])
def test_who_may_not_touch_a_table_is_refused_at_the_hello_and_learns_nothing(
    target: Target, token: str | None
) -> None:
    refusals = []
    for name, uid in ((target.name, target.uid), (target.name, bytes(16)), (f"{MINE}absent", target.uid)):
        link = FrameLink(target.port)
        link.send(hello_of("Sample", Target(name, uid, target.port), token))
        with pytest.raises(FrameRpcError) as error:
            link.answer()
        refusals.append(refusal_in(error.value).message.replace(name, "NAME"))
        with pytest.raises((EOFError, OSError)):
            link.receive()
        link.close()
    assert len(set(refusals)) == 1


def test_a_request_about_another_table_than_the_hellos_is_judged_by_its_own(
    guarded: ServerProcess, target: Target
) -> None:
    with ReplayClient(guarded.address, token=OTHER, same_host=False) as client:
        other = client.create_table(f"other-{new_name()}", columns=COLUMNS, capacity=10)
        link = FrameLink(target.port)
        link.send(hello_of("Sample", Target(other.name, other.uid, target.port), OTHER))
        assert link.answer() == b""
        link.send(request_of("Sample", target).SerializeToString())
        with pytest.raises(FrameRpcError) as error:
            link.answer()
        assert refusal_in(error.value).code is grpc.StatusCode.PERMISSION_DENIED
        link.close()
        other.drop()


def test_a_client_sends_its_token(guarded: ServerProcess) -> None:
    with ReplayClient(guarded.address, token=ALL, same_host=False) as client:
        table = client.create_table(f"{MINE}{new_name()}", columns=COLUMNS, capacity=100)
        table.insert(rows(range(10)))
        with table.sampler(4, beta=0.4) as sampler:
            sampler.update_priorities(next(sampler).row_keys, [1.0] * 4)
        assert table.stats().sampled == table.stats().sampled_in_frames > 0
        with ReplayClient(guarded.address, token=READ, same_host=False) as reader:
            assert reader.table(table.name).sample(3, beta=0.4).batch_size == 3
            with pytest.raises(PermissionDeniedError):
                reader.table(table.name).update_priorities([0], [1.0])
        table.drop()


def test_a_frame_port_and_tls_are_not_to_be_had_together(tmp_path: Path) -> None:
    flags = tls_flags(Authority(tmp_path / "authority").certify("server"))
    ended = run_to_its_end(*flags, "--frame-port", "0", "--memory-dir", str(tmp_path))
    assert ended.returncode == 2
    assert "frame_port" in ended.stderr
    assert "unencrypted" in ended.stderr


def test_a_frame_port_beyond_this_machine_needs_what_grpcs_port_needs(tmp_path: Path) -> None:
    ended = run_to_its_end("--host", "0.0.0.0", "--frame-port", "0", "--memory-dir", str(tmp_path))
    assert ended.returncode == 2
    assert "--insecure" in ended.stderr


def test_a_frame_port_that_is_taken_is_said_at_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = run_to_its_end("--frame-port", port, "--memory-dir", str(tmp_path))
    assert ended.returncode == 1
    assert f"port {port}, for frames" in ended.stderr


def test_without_the_setting_there_is_no_port(tmp_path: Path) -> None:
    process = ServerProcess(tmp_path / "log", "--memory-dir", str(tmp_path), forked=True)
    with ReplayClient(process.address) as client:
        assert client.create_table("t", columns=COLUMNS, capacity=10).describe().frame_port == 0
    assert process.terminate() == 0
    assert "frames on port" not in process.log()
