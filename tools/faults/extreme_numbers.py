"""Sends extreme numbers in every numeric field of every request, and then restarts the server on its directory.

    python -m tools.faults.extreme_numbers --times 20

The fields are found from the descriptors. Each number is sent twice, in an otherwise valid request about a durable
table of each kind. Each must be answered, or refused with a typed error. After all of them, the server is killed, and
must start again and serve all tables and a checkpoint of them; so must a server that restores the checkpoint.
"""

from __future__ import annotations

import argparse
import itertools
import random
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import Message
from replay_proto.v1 import replay_pb2

from tests.support.caller import Caller, make_draw
from tests.support.every_request import CALL_S, FLAGS, KINDS, World
from tests.support.refusals import refusal_in
from tests.support.request_fields import Field, numeric_fields
from tests.support.server_process import ServerProcess
from tests.support.wire_runs import one_run

_MOST_TABLES: Final = 150
"""Tables beside which no more are created until a restart has read them, and they are dropped."""


def check_after_restart(world: World) -> None:
    """Kill the server, start it again, and read everything; then restore a checkpoint of everything elsewhere."""
    world.caller.close()
    world.server.kill()
    world.server.restart()
    world.caller = Caller(world.server.address)
    names = world.caller.table_names()
    assert set(KINDS) <= set(names)
    read_everything(world.caller, names)
    written = world.caller.checkpoint(*KINDS, series="whole")
    assert world.caller.verify(written.name) == written
    assert written.name in world.caller.checkpoints()
    elsewhere = world.folder / f"restored-{next(world.numbers)}"
    flags = ("--data-dir", str(elsewhere), "--restore", str(world.folder / "checkpoints" / written.name), *FLAGS)
    restored = ServerProcess(world.folder / "log-restored", "--memory-dir", str(world.folder), *flags, forked=True)
    try:
        with Caller(restored.address) as caller:
            assert caller.table_names() == sorted(KINDS)
            read_everything(caller, list(KINDS))
    finally:
        restored.kill()


def read_everything(caller: Caller, names: Sequence[str]) -> None:
    """Read statistics and the rows of each table, draw from it, and inspect one of each kind."""
    caller.stub.Stats(replay_pb2.StatsRequest(), timeout=CALL_S)
    for name in names:
        table = caller.table(name)
        keys = table.live_keys()[-100:]
        found = caller.stub.Read(replay_pb2.ReadRequest(table=name, keys=keys.tobytes()), timeout=CALL_S)
        assert found.keys == keys.tobytes(), name
        draw = replay_pb2.SampleRequest(table=name, draw=make_draw(1, wait_s=0.0))
        answered(partial(caller.stub.Sample, draw, timeout=CALL_S))
        if name in KINDS:
            caller.stub.Inspect(replay_pb2.InspectRequest(table=name), timeout=CALL_S)


def drop_made(caller: Caller) -> None:
    """Drop all tables but one of each kind."""
    for name in set(caller.table_names()) - KINDS.keys():
        caller.table(name).drop()


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
        world.call(field.method, make())
    turns = itertools.cycle(makers)
    for number in numbers:
        for make in makers if all_kinds else [next(turns)]:
            _send_twice(world, make(), {field: number})
    return len(numbers)


def send_pairs(world: World, fields: Sequence[Field], source: random.Random, count: int) -> int:
    """Send extremes in random pairs of fields of one RPC; return how many. Waits are left out: long ones are valid."""
    fields = [field for field in fields if field.path[-1].name != "wait_s"]
    for _ in range(count):
        first = source.choice(fields)
        second = source.choice([field for field in fields if field.method == first.method])
        request = source.choice(world.requests(first.method))()
        _send_twice(world, request, {field: source.choice(field.extremes) for field in (first, second)})
    return count


def _send_twice(world: World, request: Message, numbers: Mapping[Field, int | float]) -> None:
    """Send a request with these numbers twice. Those that it has no place for are left out."""
    for field, number in numbers.items():
        field.put(request, number)
    try:
        for _ in range(2):
            if answered(partial(world.call, field.method, request)) and field.method == "CreateTable":
                _use_table(world, request)
    except AssertionError as error:
        raise AssertionError(
            f"{', '.join(f'{field} = {number!r}' for field, number in numbers.items())}: {error}"
        ) from error


def _use_table(world: World, request: Any) -> None:
    """Insert rows into a new table, and draw one."""
    name = request.config.name
    row_bytes = world.caller.table(name).describe().row_bytes
    insertion = replay_pb2.Insertion(row_count=2, runs=one_run(2, 1, 1), wait_s=0.0)
    if request.config.HasField("steps"):
        insertion.runs.first_steps, insertion.runs.ends = bytes(8), bytes([1])
    insert = replay_pb2.InsertRequest(table=name, insertion=insertion, rows=bytes(2 * row_bytes))
    if answered(lambda: world.call("Insert", insert)):
        draw = replay_pb2.SampleRequest(table=name, draw=make_draw(1))
        answered(lambda: world.call("Sample", draw))
    if len(world.caller.table_names()) > _MOST_TABLES:
        check_after_restart(world)
        drop_made(world.caller)


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
        times: above 1, send each number to all kinds of tables, and so many random numbers as well, and pairs.
    """
    world = World(folder)
    fields, sent = numeric_fields(), 0
    try:
        for field in fields:
            numbers = [*field.extremes, *random_numbers(field, random.Random(str(field)), times - 1)]
            sent += send(world, field, numbers, all_kinds=times > 1)
        pairs = send_pairs(world, fields, random.Random(0), 100 * (times - 1))
        check_after_restart(world)
    finally:
        world.close()
    return f"{len(fields)} numeric fields, {sent} numbers in them and {pairs} pairs of numbers, each sent twice"


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20, help="above 1: all kinds of tables, and random numbers")
    with tempfile.TemporaryDirectory() as folder:
        print(run(Path(folder), parser.parse_args().times))


if __name__ == "__main__":
    main()
