"""A table with rows and a history, and a valid request about it for every RPC."""

from __future__ import annotations

import numpy as np
from google.protobuf.message import Message
from replay_proto.v1 import replay_pb2

from tests.support.caller import CalledTable, Caller, float64, make_draw, make_update, table_config
from tests.support.rows import MUTABLE, rows_of
from tests.support.wire_runs import one_run

NAME = "victim"
WRITER = b"0123456789abcdef"
_SERIES = "kept"


def make_victim(caller: Caller) -> CalledTable:
    """Recreate the table as the only one, and a checkpoint and a shard map if there was none."""
    for name in caller.table_names():
        caller.table(name).drop()
    if not _shards_version(caller):
        caller.stub.SetShards(_next_shards(caller))
    config, version = table_config(NAME, capacity=12, schema=MUTABLE), _shards_version(caller)
    answer = caller.stub.CreateTable(replay_pb2.CreateTableRequest(config=config, shards_version=version))
    table = CalledTable(caller, NAME, answer.table.uid)
    table.insert(range(20), 1.0 + np.arange(20), stream=4, episode=5)
    table.update([10, 11, 3], [0.5, 0.25, 9.0])
    table.insert([77], writer_id=WRITER, sequence=1)
    table.sample(5)
    if not caller.checkpoints():
        caller.checkpoint(series=_SERIES)
    return table


def good_request(method: str, table: CalledTable) -> Message:
    """A valid request with every field set."""
    if method == "SetShards":
        return _next_shards(table.caller)
    name, uid = table.name, table.uid
    priorities = float64([0.5, 2.0])
    insertion = replay_pb2.Insertion(row_count=2, priorities=priorities, runs=one_run(2, 7, 8))
    numbered = replay_pb2.Insertion(row_count=2, priorities=priorities, sequence=2, runs=one_run(2, 7, 8))
    rows = rows_of(np.arange(2))
    keys = np.arange(15, 19).tobytes()
    draw = make_draw(4, beta=0.5, weight_norm=2, draw_mode=2, wait_s=0.5)
    update = make_update([12, 13], [3.0, 4.0])
    row_update = replay_pb2.RowUpdate(keys=np.arange(12, 14).tobytes(), columns=replay_pb2.ColumnNames(names=MUTABLE))
    requests: dict[str, Message] = {
        "CreateTable": replay_pb2.CreateTableRequest(
            config=table_config("other", backend="sum_tree", parameters={"alpha": 0.5, "epsilon": 0.25}, seed=5),
            shards_version=_shards_version(table.caller),
        ),
        "DropTable": replay_pb2.DropTableRequest(table=name, table_uid=uid),
        "ListTables": replay_pb2.ListTablesRequest(),
        "DescribeTable": replay_pb2.DescribeTableRequest(table=name),
        "ResetTable": replay_pb2.ResetTableRequest(table=name, table_uid=uid),
        "Insert": replay_pb2.InsertRequest(table=name, table_uid=uid, insertion=insertion, rows=rows),
        "Write": replay_pb2.WriteRequest(table=name, table_uid=uid, writer_id=WRITER, insertion=numbered, rows=rows),
        "Sample": replay_pb2.SampleRequest(table=name, table_uid=uid, draw=draw),
        "Read": replay_pb2.ReadRequest(table=name, table_uid=uid, keys=keys),
        "UpdatePriorities": replay_pb2.UpdatePrioritiesRequest(table=name, table_uid=uid, update=update),
        "UpdateRows": replay_pb2.UpdateRowsRequest(table=name, table_uid=uid, update=row_update, rows=rows),
        "Learn": replay_pb2.LearnRequest(
            table=name, table_uid=uid, update=update, row_update=row_update, rows=rows, draw=draw, batches=3
        ),
        "Stats": replay_pb2.StatsRequest(table=name),
        "Checkpoint": replay_pb2.CheckpointRequest(tables=[name], series="series", keep=2),
        "ListCheckpoints": replay_pb2.ListCheckpointsRequest(),
        "VerifyCheckpoint": replay_pb2.VerifyCheckpointRequest(name=f"{_SERIES}-000001"),
        "GetShards": replay_pb2.GetShardsRequest(),
        "ReportShard": replay_pb2.ReportShardRequest(
            table=name,
            table_uid=uid,
            report=replay_pb2.ShardReport(shard_id=3, inserted=9, size=7, total_mass=2.5),
        ),
        "Inspect": replay_pb2.InspectRequest(table=name, table_uid=uid),
    }
    return requests[method]


def _shards_version(caller: Caller) -> int:
    version: int = caller.stub.GetShards(replay_pb2.GetShardsRequest()).map.version
    return version


def _next_shards(caller: Caller) -> replay_pb2.SetShardsRequest:
    """A change of the shard map."""
    version = _shards_version(caller)
    shard = replay_pb2.Shard(id=3, address="here:1", state=replay_pb2.SHARD_STATE_ACTIVE)
    shards = replay_pb2.ShardMap(uid=WRITER, version=version + 1, shards=[shard])
    return replay_pb2.SetShardsRequest(map=shards, expected_version=version)
