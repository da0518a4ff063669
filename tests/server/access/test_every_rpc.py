"""Every RPC with every kind of caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message
from replay_client.security import Access, token_metadata
from replay_proto.v1 import replay_pb2, replay_pb2_grpc

from tests.support.access import (
    ADMIN,
    ALL,
    EVERYWHERE,
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
from tests.support.caller import float64, int64, make_draw, make_update, new_name, table_config
from tests.support.refusals import code_of, refusal_in
from tests.support.rows import MUTABLE, rows_of
from tests.support.server_process import ServerProcess

TABLE = """
                            no     wrong  expired  read   write  admin  all     other  admin   no client
                            token  token  token    only   only   only   rights  table  on all  certificate
CreateTable                 401    401    401      403    403    ok     ok      403    ok      cut
DropTable                   401    401    401      403    403    ok     ok      403    ok      cut
ListTables                  401    401    401      ok     403    403    ok      ok     403     cut
DescribeTable               401    401    401      ok     ok     ok     ok      403    ok      cut
ResetTable                  401    401    401      403    403    ok     ok      403    ok      cut
Insert                      401    401    401      403    ok     403    ok      403    403     cut
Write                       401    401    401      403    ok     403    ok      403    403     cut
Sample                      401    401    401      ok     403    403    ok      403    403     cut
Read                        401    401    401      ok     403    403    ok      403    403     cut
UpdatePriorities            401    401    401      403    ok     403    ok      403    403     cut
UpdateRows                  401    401    401      403    ok     403    ok      403    403     cut
Learn                       401    401    401      ok     403    403    ok      403    403     cut
Learn:update                401    401    401      403    403    403    ok      403    403     cut
Learn:row_update            401    401    401      403    403    403    ok      403    403     cut
Stats                       401    401    401      ok     403    403    ok      ok     403     cut
Stats:table                 401    401    401      ok     403    403    ok      403    403     cut
Checkpoint                  401    401    401      403    403    403    403     403    ok      cut
Checkpoint:table            401    401    401      403    403    ok     ok      403    ok      cut
ListCheckpoints             401    401    401      403    403    403    403     403    ok      cut
VerifyCheckpoint            401    401    401      403    403    403    403     403    404     cut
GetShards                   401    401    401      ok     ok     ok     ok      ok     ok      cut
SetShards                   401    401    401      403    403    403    403     403    409     cut
ReportShard                 401    401    401      403    400    403    400     403    403     cut
Inspect                     401    401    401      ok     403    403    ok      403    403     cut
"""
"""Outcome of each call, by RPC (with a kind of request after a colon) and caller."""
CALLERS = {
    "no token": None,
    "wrong token": WRONG,
    "expired token": EXPIRED,
    "read only": READ,
    "write only": WRITE,
    "admin only": ADMIN,
    "all rights": ALL,
    "other table": OTHER,
    "admin on all": EVERYWHERE,
    "no client certificate": ALL,
}
"""Tokens of the callers, in the order of the columns."""
UNCERTIFIED = "no client certificate"
CODES = {
    "401": grpc.StatusCode.UNAUTHENTICATED,
    "403": grpc.StatusCode.PERMISSION_DENIED,
    "404": grpc.StatusCode.NOT_FOUND,
    "400": grpc.StatusCode.INVALID_ARGUMENT,
    "409": grpc.StatusCode.ABORTED,
    "cut": grpc.StatusCode.UNAVAILABLE,
}
EXPECTED = {cells[0]: dict(zip(CALLERS, cells[1:], strict=True)) for cells in map(str.split, TABLE.splitlines()[3:])}
SERVICE = replay_pb2.DESCRIPTOR.services_by_name["ReplayService"]
TIMEOUT_S = 20.0
ROW = rows_of(np.array([7]))
ROW_UPDATE = replay_pb2.RowUpdate(keys=int64([0]), columns=replay_pb2.ColumnNames(names=MUTABLE))


@dataclass(frozen=True)
class Target:
    """The table and other targets of a test's calls."""

    table: str
    uid: bytes


def request_of(call: str, target: Target) -> Message:
    """A request that is valid for an authorized caller."""
    name, uid = target.table, target.uid
    insertion = replay_pb2.Insertion(row_count=1)
    requests: dict[str, Callable[[], Message]] = {
        "CreateTable": lambda: replay_pb2.CreateTableRequest(config=table_config(f"{name}-new")),
        "DropTable": lambda: replay_pb2.DropTableRequest(table=name),
        "ListTables": replay_pb2.ListTablesRequest,
        "DescribeTable": lambda: replay_pb2.DescribeTableRequest(table=name),
        "ResetTable": lambda: replay_pb2.ResetTableRequest(table=name),
        "Insert": lambda: replay_pb2.InsertRequest(table=name, insertion=insertion, rows=ROW),
        "Write": lambda: replay_pb2.WriteRequest(
            table=name,
            writer_id=bytes(16),
            insertion=replay_pb2.Insertion(row_count=1, sequence=1),
            rows=ROW,
        ),
        "Sample": lambda: replay_pb2.SampleRequest(table=name, draw=make_draw(1)),
        "Read": lambda: replay_pb2.ReadRequest(table=name, keys=int64([0])),
        "UpdatePriorities": lambda: replay_pb2.UpdatePrioritiesRequest(
            table=name, table_uid=uid, update=make_update([0], [1.0])
        ),
        "UpdateRows": lambda: replay_pb2.UpdateRowsRequest(table=name, table_uid=uid, update=ROW_UPDATE, rows=ROW),
        "Learn": lambda: replay_pb2.LearnRequest(table=name, draw=make_draw(1)),
        "Learn:row_update": lambda: replay_pb2.LearnRequest(table=name, table_uid=uid, row_update=ROW_UPDATE, rows=ROW),
        "Learn:update": lambda: replay_pb2.LearnRequest(table=name, table_uid=uid, update=make_update([0], [1.0])),
        "Stats": replay_pb2.StatsRequest,
        "Stats:table": lambda: replay_pb2.StatsRequest(table=name),
        "Checkpoint": replay_pb2.CheckpointRequest,
        "Checkpoint:table": lambda: replay_pb2.CheckpointRequest(tables=[name]),
        "ListCheckpoints": replay_pb2.ListCheckpointsRequest,
        "VerifyCheckpoint": lambda: replay_pb2.VerifyCheckpointRequest(name="absent-1"),
        "GetShards": replay_pb2.GetShardsRequest,
        "SetShards": lambda: replay_pb2.SetShardsRequest(
            map=replay_pb2.ShardMap(
                uid=bytes(16),
                version=1,
                shards=[replay_pb2.Shard(address="here:1", state=replay_pb2.SHARD_STATE_ACTIVE)],
            ),
            expected_version=7,
        ),
        "ReportShard": lambda: replay_pb2.ReportShardRequest(table=name, table_uid=uid),
        "Inspect": lambda: replay_pb2.InspectRequest(table=name),
    }
    return requests[call]()


class Served:
    """A server with client certificates and tokens, and channels to it with and without a certificate."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        authority = Authority(folder / "authority")
        served, client = authority.certify("server"), authority.certify("client", "client")
        tokens = write_usual_tokens(folder / "tokens.toml")
        flags = [*tls_flags(served, authority.ca), "--tokens", str(tokens), "--memory-dir", str(folder)]
        flags += ["--checkpoint-dir", str(folder / "checkpoints")]
        self.server = ServerProcess(folder / "log", *flags, forked=True)
        stack.callback(self.server.terminate)
        self._tls = {True: authority.tls(client), False: authority.tls()}
        self._stack = stack
        self._channels: dict[bool, grpc.Channel] = {}

    def channel(self, *, certified: bool = True) -> grpc.Channel:
        """A channel to the server."""
        if certified not in self._channels:
            access = Access(tls=self._tls[certified])
            options = (("grpc.use_local_subchannel_pool", 1),)
            self._channels[certified] = self._stack.enter_context(access.open_channel(self.server.address, options))
        return self._channels[certified]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with ExitStack() as stack:
        yield Served(tmp_path_factory.mktemp("access"), stack)


@pytest.fixture
def target(served: Served) -> Iterator[Target]:
    """A table with one row, dropped at the end, so that checkpoints of all tables stay small."""
    stub = replay_pb2_grpc.ReplayServiceStub(served.channel())
    name, metadata = f"{MINE}{new_name()}", token_metadata(ALL)
    made = stub.CreateTable(replay_pb2.CreateTableRequest(config=table_config(name, schema=MUTABLE)), metadata=metadata)
    insertion = replay_pb2.Insertion(row_count=1, priorities=float64([1.0]))
    request = replay_pb2.InsertRequest(table=name, insertion=insertion, rows=ROW)
    stub.Insert(request, metadata=metadata)
    yield Target(name, made.table.uid)
    for made_by_the_test in (name, f"{name}-new"):
        with suppress(grpc.RpcError):
            stub.DropTable(replay_pb2.DropTableRequest(table=made_by_the_test), metadata=metadata)


def rpc_of(call: str) -> str:
    """RPC of a line of the table."""
    return call.partition(":")[0]


def outcome(served: Served, target: Target, call: str, caller: str) -> grpc.StatusCode | None:
    """The status that a call ends with; None if it is answered."""
    described = SERVICE.methods_by_name[rpc_of(call)]
    path = f"/{SERVICE.full_name}/{described.name}"
    channel = served.channel(certified=caller != UNCERTIFIED)
    request = request_of(call, target).SerializeToString()
    metadata = token_metadata(CALLERS[caller])
    try:
        if described.client_streaming:
            stream: Callable[..., Iterator[bytes]] = channel.stream_stream(path)
            assert list(stream(iter([request]), metadata=metadata, timeout=TIMEOUT_S))
        else:
            unary: Callable[..., bytes] = channel.unary_unary(path)
            unary(request, metadata=metadata, timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        return code_of(error) if caller == UNCERTIFIED else refusal_in(error).code
    return None


def test_every_rpc_has_its_line() -> None:
    assert {rpc_of(call) for call in EXPECTED} == {method.name for method in SERVICE.methods}


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("call", EXPECTED)
def test_each_caller_may_do_what_the_table_says(served: Served, target: Target, call: str, caller: str) -> None:
    cell = EXPECTED[call][caller]
    found = outcome(served, target, call, caller)
    assert found is (None if cell == "ok" else CODES[cell])


def test_a_refused_call_changes_nothing(served: Served, target: Target) -> None:
    def state() -> bytes:
        stub = replay_pb2_grpc.ReplayServiceStub(served.channel())
        keys = int64([0, 1, 2])
        rows = stub.Read(replay_pb2.ReadRequest(table=target.table, keys=keys), metadata=token_metadata(ALL))
        listed = stub.ListTables(replay_pb2.ListTablesRequest(), metadata=token_metadata(ALL))
        return bytes(rows.SerializeToString() + listed.SerializeToString())

    before = state()
    for call, cells in EXPECTED.items():
        for caller, cell in cells.items():
            if cell != "ok":
                outcome(served, target, call, caller)
    assert state() == before


def test_no_token_and_no_name_of_a_table_of_others_is_told(served: Served, target: Target) -> None:
    for call in EXPECTED:
        for caller in CALLERS:
            outcome(served, target, call, caller)
    log = served.server.log()
    assert not [token for token in CALLERS.values() if token is not None and token in log]
    stub = replay_pb2_grpc.ReplayServiceStub(served.channel())
    metadata = token_metadata(OTHER)
    assert list(stub.ListTables(replay_pb2.ListTablesRequest(), metadata=metadata).tables) == []
    assert list(stub.Stats(replay_pb2.StatsRequest(), metadata=metadata).tables) == []
    refusals = []
    for name in (target.table, f"{MINE}absent"):
        with pytest.raises(grpc.RpcError) as error:
            stub.DescribeTable(replay_pb2.DescribeTableRequest(table=name), metadata=metadata)
        refusals.append(refusal_in(error.value).message.replace(name, "NAME"))
    assert refusals[0] == refusals[1]
