"""A low-level test client that uses the generated messages directly."""

from __future__ import annotations

import itertools
import queue
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, cast

import grpc
import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from replay_proto.layout import MOST_ROWS_AT_ONCE
from replay_proto.schema import Schema
from replay_proto.steps import Sequences, Stack, Steps, Transitions, WindowShape
from replay_proto.v1 import replay_pb2, replay_pb2_grpc

from tests.support.frame_stub import FrameStub
from tests.support.rows import WHOLE, rows_of, values_in
from tests.support.wire_runs import one_run

CALL_TIMEOUT_S = 60.0
STACKED = 3
"""Steps in each stack of a table of steps."""
WIRE, SAME_HOST = "wire", "same host"
"""Data paths: everything over gRPC, or a learner's calls and rows without it on the server's host."""
DATA_PATHS = (WIRE, SAME_HOST)
wire_only = pytest.mark.parametrize("data_path", [WIRE], indirect=True, scope="session")
"""Marks tests that concern only gRPC, in modules that run over all data paths."""
_numbers = itertools.count()


def float64(values: ArrayLike) -> bytes:
    """Serialize numbers as ``float64[n]``."""
    return np.asarray(values, "<f8").tobytes()


def int64(values: ArrayLike) -> bytes:
    """Serialize numbers as ``int64[n]``."""
    return np.asarray(values, "<i8").tobytes()


def keys_of(ranges: Sequence[replay_pb2.KeyRange]) -> NDArray[np.int64]:
    """int64[n]: the keys in a reply to an insert."""
    return np.concatenate([np.arange(part.first, part.first + part.count) for part in ranges])


class InsertCall(Protocol):
    """A started insert."""

    def done(self) -> bool:
        """Whether the call has ended."""

    def cancel(self) -> bool:
        """Cancel the call."""

    def result(self) -> replay_pb2.InsertResponse:
        """Wait for the reply."""


class SampleCall(Protocol):
    """A started draw."""

    def done(self) -> bool:
        """Whether the call has ended."""

    def cancel(self) -> bool:
        """Cancel the call."""

    def result(self) -> replay_pb2.SampleResponse:
        """Wait for the reply."""


@dataclass(frozen=True)
class Sampled:
    """A received batch with decoded arrays."""

    keys: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    weights: NDArray[np.float32]
    batch: replay_pb2.Batch
    rows: bytes

    @property
    def values(self) -> NDArray[np.int64]:
        """The values of its rows, after checking that each row is intact."""
        return values_in(self.rows)

    @property
    def window_sizes(self) -> NDArray[np.int64]:
        """int64[batch]: rows of each window, in a table of steps."""
        before, after = np.frombuffer(self.batch.before, "<i4"), np.frombuffer(self.batch.after, "<i4")
        sizes: NDArray[np.int64] = before.astype(np.int64) + 1 + after
        return sizes

    @classmethod
    def decode(cls, batch: replay_pb2.Batch, rows: bytes) -> Sampled:
        """Decode a batch, checking that its arrays have equal length."""
        keys = np.frombuffer(batch.keys, "<i8")
        probabilities = np.frombuffer(batch.probabilities, "<f8")
        weights = np.frombuffer(batch.weights, "<f4")
        assert len(keys) == len(probabilities) == len(weights)
        return cls(keys, probabilities, weights, batch, rows)


@dataclass(frozen=True)
class ReadRows:
    """A decoded reply to a Read."""

    keys: NDArray[np.int64]
    priorities: NDArray[np.float64]
    streams: NDArray[np.uint64]
    episodes: NDArray[np.uint64]
    steps: NDArray[np.int64]
    ends: NDArray[np.uint8]
    rows: bytes

    @property
    def values(self) -> NDArray[np.int64]:
        """The values of its rows, after checking that each row is intact."""
        return values_in(self.rows)


class Caller:
    """A channel to a server, and calls for its tables."""

    def __init__(self, address: str, data_path: str = WIRE, credentials: grpc.ChannelCredentials | None = None) -> None:
        """Connect, with messages of any size.

        Args:
            address: of the server.
            data_path: how a learner's calls and rows travel.
            credentials: TLS and call credentials; None: neither.
        """
        self.address = address
        self.data_path = data_path
        options = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            # Channels with the same options would share one connection within a process.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 500),
        ]
        if credentials is None:
            self.channel = grpc.insecure_channel(address, options)
        else:
            self.channel = grpc.secure_channel(address, credentials, options)
        self.stub = replay_pb2_grpc.ReplayServiceStub(self.channel)
        self._frames = None if data_path == WIRE else FrameStub(self.stub)
        if self._frames is not None:
            self.stub = cast(replay_pb2_grpc.ReplayServiceStub, self._frames)

    def __enter__(self) -> Caller:
        """Return this caller, for a ``with`` block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._frames is not None:
            self._frames.close()
        self.channel.close()

    def create(self, name: str | None = None, **config: object) -> CalledTable:
        """Create a table; see `table_config`."""
        answer = self.stub.CreateTable(
            replay_pb2.CreateTableRequest(config=table_config(name or new_name(), **config)), timeout=CALL_TIMEOUT_S
        )
        return CalledTable(self, answer.table.config.name, answer.table.uid)

    def table(self, name: str) -> CalledTable:
        """An existing table."""
        description = self.stub.DescribeTable(replay_pb2.DescribeTableRequest(table=name), timeout=CALL_TIMEOUT_S).table
        return CalledTable(self, name, description.uid)

    def table_names(self) -> list[str]:
        """The names of all tables, in listed order."""
        listed = self.stub.ListTables(replay_pb2.ListTablesRequest(), timeout=CALL_TIMEOUT_S).tables
        return [description.config.name for description in listed]

    def checkpoint(self, *tables: str, series: str = "", keep: int = 0) -> replay_pb2.CheckpointDescription:
        """Write a checkpoint."""
        request = replay_pb2.CheckpointRequest(tables=tables, series=series, keep=keep)
        return self.stub.Checkpoint(request, timeout=CALL_TIMEOUT_S).checkpoint

    def checkpoints(self) -> list[str]:
        """Names of all checkpoints, in listed order."""
        listed = self.stub.ListCheckpoints(replay_pb2.ListCheckpointsRequest(), timeout=CALL_TIMEOUT_S)
        return [checkpoint.name for checkpoint in listed.checkpoints]

    def verify(self, checkpoint: str) -> replay_pb2.CheckpointDescription:
        """Verify a checkpoint."""
        request = replay_pb2.VerifyCheckpointRequest(name=checkpoint)
        return self.stub.VerifyCheckpoint(request, timeout=CALL_TIMEOUT_S).checkpoint

    def server_stats(self) -> replay_pb2.ServerStats:
        """Statistics of the server."""
        return self.stub.Stats(replay_pb2.StatsRequest(), timeout=CALL_TIMEOUT_S).server

    def method(self, name: str) -> replay_pb2.MethodStats:
        """Statistics of a method; zeros if it was never called."""
        found = [method for method in self.server_stats().methods if method.method == name]
        return found[0] if found else replay_pb2.MethodStats(method=name)


def window_shape(table: CalledTable) -> WindowShape | None:
    """The windows of a table; None: it is not a table of steps."""
    config = table.describe().config
    return Steps.from_proto(config.steps, config.columns).window if config.HasField("steps") else None


def new_name() -> str:
    """A new, unique table name."""
    return f"table-{next(_numbers)}-{secrets.token_hex(4)}"


def table_config(
    name: str,
    capacity: object = 100,
    schema: object = WHOLE,
    backend: object = "",
    parameters: object = None,
    seed: object = None,
    rate_limiter: object = None,
    item: object = None,
) -> replay_pb2.TableConfig:
    """A table's config; by default with rows whose integrity can be checked. With an ``item``, a table of steps."""
    assert isinstance(capacity, int)
    assert isinstance(schema, Schema)
    assert isinstance(backend, str)
    assert parameters is None or isinstance(parameters, Mapping)
    assert seed is None or isinstance(seed, int)
    assert rate_limiter is None or isinstance(rate_limiter, replay_pb2.RateLimiter)
    assert item is None or isinstance(item, Transitions | Sequences)
    steps = None if item is None else Steps.of({**schema, "stacked": Stack("payload", STACKED)}, item)
    return replay_pb2.TableConfig(
        name=name,
        columns=schema.to_proto() if steps is None else steps.columns_to_proto(),
        steps=None if steps is None else steps.to_proto(),
        capacity=capacity,
        backend=replay_pb2.Backend(name=backend, parameters=parameters),
        seed=seed,
        rate_limiter=rate_limiter,
    )


_SMALL_INSERT = 64
"""Every table accepts at least this many rows per insert."""


class CalledTable:
    """Calls for one table."""

    def __init__(self, caller: Caller, name: str, uid: bytes) -> None:
        """Name the table, without calling the server."""
        self.caller = caller
        self.stub = caller.stub
        self.name = name
        self.uid = uid

    def through(self, caller: Caller) -> CalledTable:
        """The same table with another caller."""
        return CalledTable(caller, self.name, self.uid)

    def insert(
        self,
        values: ArrayLike,
        priorities: ArrayLike | None = None,
        *,
        writer_id: bytes = b"",
        sequence: int = 0,
        stream: int = 0,
        episode: int = 0,
        runs: replay_pb2.Runs | None = None,
        wait_s: float | None = None,
    ) -> NDArray[np.int64]:
        """Insert rows with these values; return their keys, int64[n]. Without a writer, split them as needed.

        ``runs`` replaces ``stream`` and ``episode``.
        """
        rows = np.atleast_1d(np.asarray(values, np.int64))
        if not writer_id and len(rows) > _SMALL_INSERT:
            described = self.describe()
            most = min(described.slots - described.config.capacity, MOST_ROWS_AT_ONCE)
            if len(rows) > most:
                given = None if priorities is None else np.asarray(priorities, np.float64)
                parts = [slice(start, start + most) for start in range(0, len(rows), most)]
                return np.concatenate(
                    [
                        self.insert(
                            rows[part],
                            None if given is None else given[part],
                            stream=stream,
                            episode=episode,
                            wait_s=wait_s,
                        )
                        for part in parts
                    ]
                )
        request = self.insert_request(rows)
        request.writer_id = writer_id
        request.insertion.MergeFrom(
            replay_pb2.Insertion(
                priorities=b"" if priorities is None else float64(priorities),
                sequence=sequence,
                runs=runs or (one_run(len(rows), stream, episode) if len(rows) else None),
                wait_s=wait_s,
            )
        )
        answer = self.stub.Insert(request, timeout=CALL_TIMEOUT_S)
        assert answer.table_uid == self.uid
        return keys_of(answer.keys)

    def insert_request(self, values: ArrayLike) -> replay_pb2.InsertRequest:
        """A request that inserts rows with these values."""
        rows = np.atleast_1d(np.asarray(values, np.int64))
        return replay_pb2.InsertRequest(
            table=self.name,
            table_uid=self.uid,
            insertion=replay_pb2.Insertion(row_count=len(rows)),
            rows=rows_of(rows),
        )

    def begin_insert(self, values: ArrayLike, wait_s: float | None = None) -> InsertCall:
        """Start to insert rows; ``result()`` waits for the reply."""
        request = self.insert_request(values)
        if wait_s is not None:
            request.insertion.wait_s = wait_s
        call: InsertCall = self.stub.Insert.future(request, timeout=CALL_TIMEOUT_S)
        return call

    def begin_sample(self, batch_size: int, wait_s: float = CALL_TIMEOUT_S) -> SampleCall:
        """Start to draw a batch; ``result()`` waits for the reply."""
        request = replay_pb2.SampleRequest(
            table=self.name, table_uid=self.uid, draw=make_draw(batch_size, wait_s=wait_s)
        )
        call: SampleCall = self.stub.Sample.future(request, timeout=CALL_TIMEOUT_S)
        return call

    def sample(self, batch_size: int, **draw: object) -> Sampled:
        """Draw a batch; ``draw`` has additional fields of a Draw."""
        answer = self.stub.Sample(
            replay_pb2.SampleRequest(table=self.name, table_uid=self.uid, draw=make_draw(batch_size, **draw)),
            timeout=CALL_TIMEOUT_S,
        )
        assert answer.table_uid == self.uid
        return Sampled.decode(answer.batch, answer.rows)

    def read(self, keys: ArrayLike) -> ReadRows:
        """Read rows by key."""
        answer = self.stub.Read(
            replay_pb2.ReadRequest(table=self.name, table_uid=self.uid, keys=int64(keys)), timeout=CALL_TIMEOUT_S
        )
        assert answer.table_uid == self.uid
        return ReadRows(
            np.frombuffer(answer.keys, "<i8"),
            np.frombuffer(answer.priorities, "<f8"),
            np.frombuffer(answer.streams, "<u8"),
            np.frombuffer(answer.episodes, "<u8"),
            np.frombuffer(answer.steps, "<i8"),
            np.frombuffer(answer.ends, "u1"),
            answer.rows,
        )

    def update(self, keys: ArrayLike, priorities: ArrayLike) -> replay_pb2.UpdateResult:
        """Set priorities."""
        return self.stub.UpdatePriorities(
            replay_pb2.UpdatePrioritiesRequest(
                table=self.name, table_uid=self.uid, update=make_update(keys, priorities)
            ),
            timeout=CALL_TIMEOUT_S,
        ).result

    def describe(self) -> replay_pb2.TableDescription:
        """Describe the table."""
        return self.stub.DescribeTable(replay_pb2.DescribeTableRequest(table=self.name), timeout=CALL_TIMEOUT_S).table

    def stats(self) -> replay_pb2.TableStats:
        """Its statistics."""
        (stats,) = self.stub.Stats(replay_pb2.StatsRequest(table=self.name), timeout=CALL_TIMEOUT_S).tables
        return stats

    def reset(self) -> int:
        """Reset it; return the number of removed rows."""
        return self.stub.ResetTable(
            replay_pb2.ResetTableRequest(table=self.name, table_uid=self.uid), timeout=CALL_TIMEOUT_S
        ).removed

    def drop(self) -> None:
        """Drop the table."""
        self.stub.DropTable(replay_pb2.DropTableRequest(table=self.name, table_uid=self.uid), timeout=CALL_TIMEOUT_S)

    def live_keys(self) -> NDArray[np.int64]:
        """int64[size]: the keys of its live rows, oldest first."""
        description = self.describe()
        return np.arange(description.inserted - description.size, description.inserted)

    def state(self) -> dict[str, object]:
        """All state that a refused request must not change."""
        stats = self.stats()
        stats.ClearField("rates")
        stats.ClearField("ages_s")
        stats.ClearField("waited")
        rows = self.read(self.live_keys())
        return {
            "description": self.describe().SerializeToString(deterministic=True),
            "stats": stats.SerializeToString(deterministic=True),
            "keys": rows.keys.tolist(),
            "priorities": rows.priorities.tolist(),
            "links": (rows.streams.tolist(), rows.episodes.tolist()),
            "rows": rows.rows,
        }


def make_draw(batch_size: int, **fields: object) -> replay_pb2.Draw:
    """A Draw with these fields."""
    draw = replay_pb2.Draw(batch_size=batch_size)
    for name, value in fields.items():
        setattr(draw, name, value)
    return draw


def make_update(keys: ArrayLike, priorities: ArrayLike) -> replay_pb2.PriorityUpdate:
    """A PriorityUpdate of these arrays."""
    return replay_pb2.PriorityUpdate(keys=int64(keys), priorities=float64(priorities))


class LearnStream:
    """A learner's stream, message by message."""

    def __init__(self, table: CalledTable) -> None:
        """Open the stream."""
        self._table = table
        self._requests: queue.SimpleQueue[replay_pb2.LearnRequest | None] = queue.SimpleQueue()
        self.call = table.stub.Learn(iter(self._requests.get, None), timeout=CALL_TIMEOUT_S)

    def send(
        self,
        *,
        draw: replay_pb2.Draw | None = None,
        update: replay_pb2.PriorityUpdate | None = None,
        batches: int = 0,
        **others: Any,
    ) -> None:
        """Send a request; ``others`` are its other fields."""
        self.send_message(
            replay_pb2.LearnRequest(
                table=self._table.name, table_uid=self._table.uid, draw=draw, update=update, batches=batches, **others
            )
        )

    def send_message(self, request: replay_pb2.LearnRequest) -> None:
        """Send a request unchanged."""
        self._requests.put(request)

    def receive(self) -> replay_pb2.LearnResponse:
        """The next answer."""
        return next(self.call)

    def ask(self, **request: object) -> tuple[replay_pb2.LearnResponse, list[Sampled]]:
        """Send a request and return its answer, with its batches decoded."""
        self.send(**request)  # type: ignore[arg-type]
        return self.receive_batches()

    def receive_batches(self) -> tuple[replay_pb2.LearnResponse, list[Sampled]]:
        """The next answer, with its batches decoded."""
        answer = self.receive()
        return answer, list(batches_in(answer))

    def close(self) -> None:
        """Close the sending side."""
        self._requests.put(None)

    def vanish(self) -> None:
        """Disconnect abruptly."""
        self.call.cancel()
        self._requests.put(None)


def batches_in(answer: replay_pb2.LearnResponse) -> Iterator[Sampled]:
    """The batches of an answer, each with its rows."""
    start = 0
    for batch in answer.batches:
        end = start + len(batch.window_keys or batch.keys) // 8 * WHOLE.row_bytes
        yield Sampled.decode(batch, answer.rows[start:end])
        start = end
    assert start == len(answer.rows)


class WriteStream:
    """A writer's stream, message by message."""

    def __init__(self, table: CalledTable, writer_id: bytes) -> None:
        """Open the stream."""
        self._table = table
        self._writer_id = writer_id
        self._requests: queue.SimpleQueue[replay_pb2.WriteRequest | None] = queue.SimpleQueue()
        self.call = table.stub.Write(iter(self._requests.get, None), timeout=CALL_TIMEOUT_S)

    def send(
        self,
        values: ArrayLike,
        sequence: int,
        priorities: ArrayLike | None = None,
        runs: replay_pb2.Runs | None = None,
    ) -> None:
        """Send rows."""
        rows = np.atleast_1d(np.asarray(values, np.int64))
        self.send_message(
            replay_pb2.WriteRequest(
                table=self._table.name,
                table_uid=self._table.uid,
                writer_id=self._writer_id,
                insertion=replay_pb2.Insertion(
                    row_count=len(rows),
                    sequence=sequence,
                    priorities=b"" if priorities is None else float64(priorities),
                    runs=runs,
                ),
                rows=rows_of(rows),
            )
        )

    def send_message(self, request: replay_pb2.WriteRequest) -> None:
        """Send a request unchanged."""
        self._requests.put(request)

    def receive(self) -> replay_pb2.WriteResponse:
        """The next acknowledgement."""
        return next(self.call)

    def write(self, values: ArrayLike, sequence: int) -> NDArray[np.int64]:
        """Send rows, wait for the acknowledgement, and return their keys, int64[n]."""
        self.send(values, sequence)
        answer = self.receive()
        assert answer.sequence == sequence
        assert answer.table_uid == self._table.uid
        return keys_of(answer.keys)

    def close(self) -> None:
        """Close the sending side."""
        self._requests.put(None)
