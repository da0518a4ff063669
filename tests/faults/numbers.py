"""Sends extreme numbers in every numeric field of every request, and then restarts the server on its directory.

    python -m tests.faults.numbers --times 20

The fields are found from the descriptors. Each number is sent twice, in an otherwise valid request about a durable
table of each kind. Each must be answered, or refused with a typed error. After all of them, the server is killed, and
must start again and serve all tables and a checkpoint of them; so must a server that restores the checkpoint.
"""

from __future__ import annotations

import argparse
import itertools
import random
import secrets
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
from google.protobuf.message import Message
from replay_proto.schema import Column, Schema
from replay_proto.steps import Sequences, Transitions
from replay_proto.v1 import replay_pb2

from tests.support.caller import CalledTable, Caller, float64, make_draw, table_config
from tests.support.refusals import refusal_in
from tests.support.request_fields import Field, numeric_fields
from tests.support.rows import rows_of
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
}
"""Config of one table of each kind."""
ROWS: Final = 3
"""Rows of each insert."""
_CALL_S: Final = 20.0
_FILLED: Final = 20
"""Inserts into each table before the first number is sent."""
_FLAGS: Final = ("--max-table-bytes", "20000000", "--max-columns", "8")
_OF_TABLES: Final = ("Insert", "Write", "Sample", "Read", "UpdatePriorities", "Learn")


class World:
    """A server with a durable table of each kind, and valid requests about them."""

    def __init__(self, folder: Path) -> None:
        """Start the server, and create and fill the tables."""
        self._folder = folder
        self._numbers = itertools.count(1)
        flags = ("--data-dir", str(folder / "data"), "--checkpoint-dir", str(folder / "checkpoints"), *_FLAGS)
        self.server = ServerProcess(folder / "log", "--memory-dir", str(folder), *flags, forked=True)
        self.caller = Caller(self.server.address)
        self.tables: dict[str, CalledTable] = {}
        for kind, config in KINDS.items():
            self.tables[kind] = self.caller.create(kind, **config)
            for _ in range(_FILLED):
                self.call("Insert", self._insert(kind))
        self.call("SetShards", self._next_map())

    def close(self) -> None:
        """End the server."""
        self.caller.close()
        self.server.kill()

    def call(self, method: str, request: Message) -> Message:
        """Make a call; return its answer.

        Raises:
            grpc.RpcError: it is refused.
        """
        send: Callable[..., Any] = getattr(self.caller.stub, method)
        if method in ("Learn", "Write"):
            (answer,) = send(iter([request]), timeout=_CALL_S)
        else:
            answer = send(request, timeout=_CALL_S)
        assert isinstance(answer, Message)
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
            by_kind = [partial(made[method], kind) for kind in KINDS]
            by_key = [partial(self._by_key, method, kind) for kind in ("plain", "rank", "transitions")]
            return [*by_kind, *(by_key if method in ("Sample", "Learn") else ())]
        if method == "CreateTable":
            return [partial(self._create, config) for config in _configs()]
        others: dict[str, Callable[[], Message]] = {
            "Stats": lambda: replay_pb2.StatsRequest(fractions=[0.5]),
            "Checkpoint": lambda: replay_pb2.CheckpointRequest(
                tables=["uniform"], series=f"series-{next(self._numbers)}", keep=1, shard_id=0
            ),
            "SetShards": self._next_map,
            "ReportShard": lambda: replay_pb2.ReportShardRequest(
                table="plain",
                report=replay_pb2.ShardReport(shard_id=0, inserted=next(self._numbers) + 9, size=2, total_mass=0.5),
            ),
            "Inspect": lambda: replay_pb2.InspectRequest(table="plain", largest=2),
        }
        return [others[method]]

    def _insertion(self, kind: str) -> replay_pb2.Insertion:
        number = next(self._numbers)
        runs = one_run(ROWS, number, number)
        is_of_steps = "item" in KINDS[kind]
        if is_of_steps:
            runs.first_steps, runs.ends = bytes(8), bytes(1)
        priorities = float64(np.ones(ROWS - is_of_steps))
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
        return replay_pb2.SampleRequest(table=kind, draw=make_draw(2, beta=0.5, draw_mode=1, weight_norm=2))

    def _read(self, kind: str) -> replay_pb2.ReadRequest:
        return replay_pb2.ReadRequest(table=kind, keys=self._keys(kind))

    def _update(self, kind: str) -> replay_pb2.UpdatePrioritiesRequest:
        update = replay_pb2.PriorityUpdate(keys=self._keys(kind), priorities=float64([1.0, 2.0]), others_largest=1.5)
        return replay_pb2.UpdatePrioritiesRequest(table=kind, table_uid=self.tables[kind].uid, update=update)

    def _learn(self, kind: str) -> replay_pb2.LearnRequest:
        request = replay_pb2.LearnRequest(
            table=kind,
            table_uid=self.tables[kind].uid,
            update=self._update(kind).update,
            draw=self._sample(kind).draw,
            batches=1,
            ahead=1,
        )
        if kind == "limited":
            request.charge, request.refund = 1, 1
        if kind == "rank":
            request.ranks.CopyFrom(replay_pb2.RankQuery(draws=2, priorities=float64([0.5, 1.0])))
        return request

    def _by_key(self, method: str, kind: str) -> Message:
        request: Any = self._sample(kind) if method == "Sample" else self._learn(kind)
        request.draw.keys = self._keys(kind)
        return request  # type: ignore[no-any-return]

    def _keys(self, kind: str) -> bytes:
        return self.tables[kind].live_keys()[-4:-2].tobytes()

    def _create(self, config: replay_pb2.TableConfig) -> replay_pb2.CreateTableRequest:
        request = replay_pb2.CreateTableRequest(config=config, shards_version=self._map().version)
        request.config.name = f"made-{next(self._numbers)}"
        return request

    def _map(self) -> replay_pb2.ShardMap:
        answer: replay_pb2.GetShardsResponse = self.caller.stub.GetShards(replay_pb2.GetShardsRequest())
        return answer.map

    def _next_map(self) -> replay_pb2.SetShardsRequest:
        """A map with one more shard, which is lost, after the others."""
        current = self._map()
        rows = replay_pb2.LostRows(table="plain", table_uids=[bytes(16)], size=1, inserted=2)
        before = list(current.shards) or [replay_pb2.Shard(address="h:1", state=replay_pb2.SHARD_STATE_ACTIVE)]
        lost = replay_pb2.Shard(
            id=before[-1].id + 1, address="h:2", state=replay_pb2.SHARD_STATE_LOST, lost_rows=[rows]
        )
        version, shards = current.version + 1, [*before, lost]
        changed = replay_pb2.ShardMap(uid=b"of this service.", version=version, shards=shards)
        return replay_pb2.SetShardsRequest(map=changed, expected_version=current.version)

    def check_after_restart(self) -> None:
        """Kill the server, start it again, and read everything; then restore a checkpoint of everything elsewhere."""
        self.caller.close()
        self.server.kill()
        self.server.restart()
        self.caller = Caller(self.server.address)
        names = self.caller.table_names()
        assert set(KINDS) <= set(names)
        read_everything(self.caller, names)
        written = self.caller.checkpoint(*KINDS, series="whole")
        assert self.caller.verify(written.name) == written
        assert written.name in self.caller.checkpoints()
        elsewhere = self._folder / f"restored-{next(self._numbers)}"
        flags = ("--data-dir", str(elsewhere), "--restore", str(self._folder / "checkpoints" / written.name), *_FLAGS)
        restored = ServerProcess(self._folder / "log-restored", "--memory-dir", str(self._folder), *flags, forked=True)
        try:
            with Caller(restored.address) as caller:
                assert caller.table_names() == sorted(KINDS)
                read_everything(caller, list(KINDS))
        finally:
            restored.kill()


def read_everything(caller: Caller, names: Sequence[str]) -> None:
    """Read statistics and the rows of each table, draw from it, and inspect one of each kind."""
    caller.stub.Stats(replay_pb2.StatsRequest(), timeout=_CALL_S)
    for name in names:
        table = caller.table(name)
        keys = table.live_keys()[-100:]
        found = caller.stub.Read(replay_pb2.ReadRequest(table=name, keys=keys.tobytes()), timeout=_CALL_S)
        assert found.keys == keys.tobytes(), name
        draw = replay_pb2.SampleRequest(table=name, draw=make_draw(1, wait_s=0.0))
        answered(partial(caller.stub.Sample, draw, timeout=_CALL_S))
        if name in KINDS:
            caller.stub.Inspect(replay_pb2.InspectRequest(table=name), timeout=_CALL_S)


def answered(call: Callable[[], object]) -> bool:
    """Make a call; return whether it was answered rather than refused. `refusal_in` asserts that refusals are typed."""
    try:
        call()
    except grpc.RpcError as error:
        refusal_in(error)
        return False
    return True


def send(world: World, field: Field, numbers: Sequence[int | float], *, all_kinds: bool) -> int:
    """Send these numbers in a field, each twice; return how many were sent.

    Args:
        world: the server.
        field: the field.
        numbers: the numbers.
        all_kinds: whether to send each number about each kind of table, rather than about one of them in turn.
    """
    places = [make for make in world.requests(field.method) if field.put(make(), numbers[0])]
    # A field that only some kinds of tables allow is set only in requests about these.
    makers = [make for make in places if field.is_set(make())] or places
    assert makers, f"no valid request has a place for {field}; add one to `World.requests`"
    for make in makers:
        assert answered(partial(world.call, field.method, make())), f"expected a valid request for {field}"
    turns = itertools.cycle(makers)
    for number in numbers:
        for make in makers if all_kinds else [next(turns)]:
            request = make()
            assert field.put(request, number)
            try:
                for _ in range(2):
                    if answered(partial(world.call, field.method, request)):
                        _use(world, field, request)
            except AssertionError as error:
                raise AssertionError(f"{field} = {number!r}: {error}") from error
    return len(numbers)


def _use(world: World, field: Field, request: Any) -> None:
    """Insert rows into a new table, and draw one."""
    if field.method != "CreateTable":
        return
    name = request.config.name
    row_bytes = world.caller.table(name).describe().row_bytes
    insertion = replay_pb2.Insertion(row_count=2, runs=one_run(2, 1, 1), wait_s=0.0)
    if request.config.HasField("steps"):
        insertion.runs.first_steps, insertion.runs.ends = bytes(8), bytes([1])
    insert = replay_pb2.InsertRequest(table=name, insertion=insertion, rows=bytes(2 * row_bytes))
    if answered(lambda: world.call("Insert", insert)):
        draw = replay_pb2.SampleRequest(table=name, draw=make_draw(1))
        answered(lambda: world.call("Sample", draw))


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


def random_numbers(field: Field, source: random.Random, count: int) -> list[int | float]:
    """Random numbers of any size that the field can hold."""
    known = field.extremes
    if isinstance(known[0], float):
        return [struct.unpack("<d", source.randbytes(8))[0] for _ in range(count)]
    least, most = min(known), max(known)
    sizes = (int(source.choice((-1, 1)) * 2 ** source.uniform(0, 64)) for _ in range(count))
    return [int(min(max(size, least), most)) for size in sizes]


def run(folder: Path, times: int = 1) -> str:
    """Send everything; return a line about it.

    Args:
        folder: an empty folder.
        times: above 1, send each number to all kinds of tables, and so many random numbers as well.
    """
    world = World(folder)
    fields, sent = numeric_fields(), 0
    try:
        for field in fields:
            numbers = [*field.extremes, *random_numbers(field, random.Random(str(field)), times - 1)]
            sent += send(world, field, numbers, all_kinds=times > 1)
        world.check_after_restart()
    finally:
        world.close()
    return f"{len(fields)} numeric fields, {sent} numbers in them, each sent twice"


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20, help="above 1: all kinds of tables, and random numbers")
    with tempfile.TemporaryDirectory() as folder:
        print(run(Path(folder), parser.parse_args().times))


if __name__ == "__main__":
    main()
