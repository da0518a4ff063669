"""A server with a durable table of each kind, and a valid request for every RPC about each of them."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from google.protobuf.message import Message
from replay_client.security import token_metadata
from replay_proto.schema import Column, Schema
from replay_proto.steps import Sequences, Steps, Transitions
from replay_proto.v1 import replay_pb2

from tests.support.caller import CalledTable, Caller, float64, make_draw, table_config
from tests.support.rows import MUTABLE, rows_of
from tests.support.server_process import ServerProcess
from tests.support.wire_runs import one_run

WIDE: Final = replay_pb2.RateLimiter(min_size=1, samples_per_insert=1.0, min_diff=-(2.0**200), max_diff=2.0**200)
KINDS: Final[Mapping[str, Mapping[str, object]]] = {
    "plain": {"backend": "sum_tree", "seed": 5},
    "rank": {"backend": "rank"},
    "uniform": {"backend": "uniform"},
    "queue": {"backend": "fifo", "capacity": 1 << 14},
    "limited": {"rate_limiter": WIDE},
    "late": {"rate_limiter": replay_pb2.RateLimiter(min_size=1)},
    "transitions": {"item": Transitions(n_step=1, gamma=0.9)},
    "sequences": {"item": Sequences(length=2, gamma=0.9)},
    "mutable": {"schema": MUTABLE},
}
"""Config of one table of each kind."""
ROWS: Final = 3
"""Rows of each insert."""
CALL_S: Final = 20.0
"""Limit on a call, in seconds."""
FLAGS: Final = ("--max-table-bytes", "20000000", "--max-columns", "8")
"""Flags of the server."""
_FILLED: Final = 20
"""Inserts into each table at first."""
_OF_TABLES: Final = ("Insert", "Write", "Sample", "Read", "UpdatePriorities", "Learn")


class World:
    """A server with a durable table of each kind, and valid requests about them."""

    def __init__(self, folder: Path, *more_flags: str, token: str = "") -> None:
        """Start the server, and create and fill the tables, with all rights."""
        self.folder = folder
        self.numbers = itertools.count(1)
        self.token = token
        """The token of calls; empty: none."""
        flags = ("--data-dir", str(folder / "data"), "--checkpoint-dir", str(folder / "checkpoints"), *FLAGS)
        self.server = ServerProcess(folder / "log", "--memory-dir", str(folder), *flags, *more_flags, forked=True)
        self.caller = Caller(self.server.address)
        self.tables: dict[str, CalledTable] = {}
        self._rows_after_anchor: dict[str, int] = {}
        for kind, config in KINDS.items():
            whole = table_config(kind, **config)
            made = self.call("CreateTable", replay_pb2.CreateTableRequest(config=whole))
            if whole.HasField("steps"):
                self._rows_after_anchor[kind] = Steps.from_proto(whole.steps, whole.columns).window.forward
            self.tables[kind] = CalledTable(self.caller, kind, made.table.uid)
            for _ in range(_FILLED):
                self.call("Insert", self._insert(kind))
        self.call("SetShards", self._next_map())

    def close(self) -> None:
        """End the server."""
        self.caller.close()
        self.server.kill()

    def call(self, method: str, request: Message, token: str = "") -> Any:
        """Make a call, with another token if one is given; return its answer.

        Raises:
            grpc.RpcError: it is refused.
        """
        send: Callable[..., Any] = getattr(self.caller.stub, method)
        metadata = token_metadata(token or self.token or None)
        if method in ("Learn", "Write"):
            (answer,) = send(iter([request]), timeout=CALL_S, metadata=metadata)
        else:
            answer = send(request, timeout=CALL_S, metadata=metadata)
        return answer

    def requests(self, method: str) -> list[Callable[[], Message]]:
        """Functions that make valid requests: with every field of the method set in one of them, for each kind."""
        if method in _OF_TABLES:
            made: dict[str, Callable[[str], Message]] = {
                "Insert": self._insert,
                "Write": self._write,
                "Sample": self._sample,
                "Read": self._read,
                "UpdatePriorities": self._update,
                "Learn": self._learn,
            }
            return [partial(made[method], kind) for kind in KINDS]
        if method == "UpdateRows":
            return [self._update_rows]
        if method == "CreateTable":
            return [partial(self._create, config) for config in _configs()]
        others: dict[str, Callable[[], Message]] = {
            "DropTable": self._drop,
            "ListTables": replay_pb2.ListTablesRequest,
            "DescribeTable": lambda: replay_pb2.DescribeTableRequest(table="plain"),
            "ResetTable": lambda: replay_pb2.ResetTableRequest(table="late", table_uid=self.tables["late"].uid),
            "GetShards": replay_pb2.GetShardsRequest,
            "ListCheckpoints": replay_pb2.ListCheckpointsRequest,
            "VerifyCheckpoint": self._verify,
            "Stats": lambda: replay_pb2.StatsRequest(table="plain"),
            "Checkpoint": lambda: replay_pb2.CheckpointRequest(
                tables=["uniform"], series=f"series-{next(self.numbers)}", keep=1, number=7, shard_id=1
            ),
            "SetShards": self._next_map,
            "ReportShard": lambda: replay_pb2.ReportShardRequest(
                table="plain",
                report=replay_pb2.ShardReport(shard_id=1, inserted=next(self.numbers) + 9, size=2, total_mass=0.5),
            ),
            "Inspect": lambda: replay_pb2.InspectRequest(table="plain", largest=2),
        }
        return [others[method]]

    def _insertion(self, kind: str) -> replay_pb2.Insertion:
        number = next(self.numbers)
        runs = one_run(ROWS, number, number)
        if kind in self._rows_after_anchor:
            runs.first_steps, runs.ends = bytes(8), bytes(1)
        priorities = float64(np.ones(ROWS - self._rows_after_anchor.get(kind, 0)))
        return replay_pb2.Insertion(row_count=ROWS, priorities=priorities, runs=runs, wait_s=0.0)

    def _insert(self, kind: str) -> replay_pb2.InsertRequest:
        return replay_pb2.InsertRequest(table=kind, insertion=self._insertion(kind), rows=rows_of(np.arange(ROWS)))

    def _write(self, kind: str) -> replay_pb2.WriteRequest:
        insertion = self._insertion(kind)
        insertion.sequence = 1
        return replay_pb2.WriteRequest(
            table=kind, writer_id=secrets.token_bytes(16), insertion=insertion, rows=rows_of(np.arange(ROWS))
        )

    def _sample(self, kind: str) -> replay_pb2.SampleRequest:
        draw = make_draw(2, beta=0.5, draw_mode=1, weight_norm=2)
        return replay_pb2.SampleRequest(table=kind, draw=draw, reader=self._reader(kind))

    def _reader(self, kind: str) -> replay_pb2.ReaderStamp | None:
        if kind != "queue":
            return None
        return replay_pb2.ReaderStamp(reader_id=secrets.token_bytes(16), sequence=2, received=1)

    def _read(self, kind: str) -> replay_pb2.ReadRequest:
        return replay_pb2.ReadRequest(table=kind, keys=self._keys(kind))

    def _update(self, kind: str) -> replay_pb2.UpdatePrioritiesRequest:
        update = replay_pb2.PriorityUpdate(keys=self._keys(kind), priorities=float64([1.0, 2.0]), others_largest=1.5)
        return replay_pb2.UpdatePrioritiesRequest(table=kind, table_uid=self.tables[kind].uid, update=update)

    def _update_rows(self) -> replay_pb2.UpdateRowsRequest:
        kind = "mutable"
        update = replay_pb2.RowUpdate(keys=self._keys(kind), columns=replay_pb2.ColumnNames(names=MUTABLE))
        uid = self.tables[kind].uid
        return replay_pb2.UpdateRowsRequest(table=kind, table_uid=uid, update=update, rows=rows_of(np.arange(2)))

    def _learn(self, kind: str) -> replay_pb2.LearnRequest:
        request = replay_pb2.LearnRequest(
            table=kind,
            table_uid=self.tables[kind].uid,
            update=self._update(kind).update,
            draw=self._sample(kind).draw,
            batches=1,
            ahead=1,
            reader=self._reader(kind),
        )
        if kind == "mutable":
            written = self._update_rows()
            request.row_update.CopyFrom(written.update)
            request.rows = written.rows
        if kind == "limited":
            request.charge, request.refund = 1, 1
        return request

    def _keys(self, kind: str) -> bytes:
        described = self.call("DescribeTable", replay_pb2.DescribeTableRequest(table=kind)).table
        return np.arange(described.inserted - 4, described.inserted - 2).tobytes()

    def _create(self, config: replay_pb2.TableConfig) -> replay_pb2.CreateTableRequest:
        request = replay_pb2.CreateTableRequest(config=config, shards_version=self._map().version)
        request.config.name = f"made-{next(self.numbers)}"
        return request

    def _map(self) -> replay_pb2.ShardMap:
        answer: replay_pb2.GetShardsResponse = self.call("GetShards", replay_pb2.GetShardsRequest())
        return answer.map

    def _drop(self) -> replay_pb2.DropTableRequest:
        made = self.call("CreateTable", self._create(next(_configs()))).table
        return replay_pb2.DropTableRequest(table=made.config.name, table_uid=made.uid)

    def _verify(self) -> replay_pb2.VerifyCheckpointRequest:
        request = replay_pb2.CheckpointRequest(tables=["uniform"], series=f"series-{next(self.numbers)}")
        return replay_pb2.VerifyCheckpointRequest(name=self.call("Checkpoint", request).checkpoint.name)

    def _next_map(self) -> replay_pb2.SetShardsRequest:
        """A map with one more shard, which is lost, after the others."""
        current = self._map()
        rows = replay_pb2.LostRows(table="plain", table_uids=[bytes(16)], size=1, inserted=2)
        before = list(current.shards) or [replay_pb2.Shard(address="h:1", state=replay_pb2.SHARD_STATE_ACTIVE)]
        lost = replay_pb2.Shard(
            id=before[-1].id + 1, address="h:2", state=replay_pb2.SHARD_STATE_LOST, lost_rows=[rows]
        )
        version, shards = current.version + 1, [*before, lost]
        number = next(self.numbers).to_bytes(16, "little")
        changed = replay_pb2.ShardMap(
            uid=b"of this service.", version=version, shards=shards, id=number, ancestors=[current.id or bytes(16)]
        )
        return replay_pb2.SetShardsRequest(map=changed, expected_version=current.version)


def _configs() -> Iterator[replay_pb2.TableConfig]:
    """Configs with each numeric field."""
    one = Schema({"x": Column("int64", (2,))})
    for backend, name, value in (
        *(("sum_tree", "alpha", 0.5), ("sum_tree", "epsilon", 0.5), ("sum_tree", "max_priority", 5.0)),
        *(("rank", "alpha", 0.5), ("fifo", "max_times_sampled", 2.0)),
    ):
        yield table_config("-", schema=one, backend=backend, parameters={name: value}, seed=7)
    limited = table_config("-", schema=one, rate_limiter=WIDE)
    limited.whole_capacity, limited.whole_shards[:] = 1000, [0, 1]
    yield limited
    yield table_config("-", item=Transitions(n_step=1, gamma=0.5))
    yield table_config("-", item=Sequences(length=2, burn_in=1, gamma=0.5))
