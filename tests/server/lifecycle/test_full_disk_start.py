"""A server with full disks starts, and does everything that needs no space."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from replay_proto.schema import Column, Schema
from replay_proto.v1 import replay_pb2

from tests.support.caller import CalledTable, Caller, new_name, table_config
from tests.support.power import pretend_another_boot
from tests.support.refusals import refused
from tests.support.server_process import ServerProcess
from tests.support.small_disk import mounted_disk

StartServer = Callable[..., ServerProcess]
LARGE = Schema({"frame": Column("uint8", (1 << 16,))})
DISK_MB = 16
POWER = ("--durability", "power")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes that outlives a server."""
    with mounted_disk(tmp_path / "disk", DISK_MB) as disk:
        yield disk


def fill(disk: Path) -> None:
    """Fill the disk completely."""
    with (disk / "filling").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 12))


def insert(table: CalledTable, count: int) -> replay_pb2.InsertResponse:
    return table.stub.Insert(
        replay_pb2.InsertRequest(
            table=table.name, insertion=replay_pb2.Insertion(row_count=count), rows=bytes(count << 16)
        )
    )


# There is no test of a power loss with checksums: recovery reads slots that were never written, and tmpfs, unlike
# disks, allocates space for pages that are only read.
@pytest.mark.parametrize(
    ("flags", "lost_power"), [((), False), ((), True), (POWER, False)], ids=["killed", "lost power", "checksums"]
)
def test_a_server_starts_on_disks_that_are_full_to_the_last_byte(
    start_server: StartServer, small_disk: Path, flags: tuple[str, ...], lost_power: bool
) -> None:
    data, checkpoints = small_disk / "data", small_disk / "checkpoints"
    server = start_server("--data-dir", str(data), "--checkpoint-dir", str(checkpoints), *flags)
    with Caller(server.address) as caller:
        table = caller.create(schema=LARGE, capacity=200)
        insert(table, 20)
    server.kill()
    if lost_power:
        pretend_another_boot(data)
    fill(small_disk)
    server.restart()
    with Caller(server.address) as caller:
        table = caller.table(table.name)
        keys = table.live_keys()
        assert len(keys) == 20
        assert len(caller.stub.Read(replay_pb2.ReadRequest(table=table.name, keys=keys.tobytes())).rows) == 20 << 16
        assert table.update(keys, np.full(20, 2.0)).updated == 20
        draw = replay_pb2.SampleRequest(table=table.name, draw=replay_pb2.Draw(batch_size=5))
        assert len(caller.stub.Sample(draw).rows) == 5 << 16
        with refused("NO_SPACE", table=table.name) as refusal:
            insert(table, 60)
        assert str(data) in refusal.message
        config = table_config(new_name())
        with refused("NO_SPACE", table=config.name) as refusal:
            caller.stub.CreateTable(replay_pb2.CreateTableRequest(config=config))
        assert str(data) in refusal.message
        with refused("NO_SPACE") as refusal:
            caller.checkpoint()
        assert str(checkpoints) in refusal.message
    assert server.terminate() == 0
    (small_disk / "filling").unlink()
    server.restart()
    with Caller(server.address) as caller:
        insert(caller.table(table.name), 20)


def test_a_table_whose_checksums_have_no_room_is_served_without(start_server: StartServer, small_disk: Path) -> None:
    data = str(small_disk / "data")
    server = start_server("--data-dir", data)
    with Caller(server.address) as caller:
        table = caller.create(schema=LARGE, capacity=200)
        insert(table, 20)
    assert server.terminate() == 0
    fill(small_disk)
    server = start_server("--data-dir", data, *POWER)
    server.wait_for_log(f"table {table.name} has no checksums")
    with Caller(server.address) as caller:
        assert len(caller.table(table.name).live_keys()) == 20
    assert server.terminate() == 0
