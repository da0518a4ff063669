"""Checkpoints: taken while serving, atomic, and restored with ``--restore``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import grpc
import numpy as np
import pytest
from replay_proto.schema import Column, Schema
from replay_proto.v1 import replay_pb2
from replay_server.backends import BACKENDS
from replay_server.catalog import Catalog
from replay_server.checkpoint.store import Checkpoints
from replay_server.storage.root import Root
from replay_server.storage.table_config import TableConfig

from tests.server.lifecycle.test_restart import lived_in
from tests.support.caller import Caller
from tests.support.deadlines import wait_until
from tests.support.refusals import refused
from tests.support.rows import WHOLE
from tests.support.server_process import ServerProcess, run_to_its_end
from tests.support.small_disk import with_small_disk

StartServer = Callable[..., ServerProcess]
Call = Callable[[ServerProcess], Caller]
T = TypeVar("T")
WRITER = b"0123456789abcdef"
LONGEST_CALL_S = 0.1
"""Limit on the delay of any call by a checkpoint."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The checkpoint directory."""
    return tmp_path / "checkpoints"


@pytest.fixture
def keeping(start_server: StartServer, folder: Path) -> ServerProcess:
    """A server that writes checkpoints and keeps its tables in memory."""
    return start_server("--checkpoint-dir", str(folder))


@pytest.fixture
def caller(keeping: ServerProcess, call: Call) -> Caller:
    """A caller of that server."""
    return call(keeping)


# Restored tables equal the originals.


def test_a_restored_table_is_the_one_that_was_copied(caller: Caller, start_server: StartServer, call: Call) -> None:
    tables = []
    for backend in BACKENDS:
        full = caller.create(backend=backend, capacity=50)
        full.insert(range(130), np.arange(130) * 0.5, stream=3, episode=2**64 - 1)
        full.update([100, 101, 129, 5], [0.0, 77.0, 1.0, 9.0])
        reset = caller.create(backend=backend)
        reset.insert(range(30))
        reset.reset()
        reset.insert(range(5), [1.0, 2.0, 3.0, 4.0, 5.0])
        tables += [full, reset, caller.create(backend=backend)]
    before = {table.name: lived_in(table) for table in tables}
    made = caller.checkpoint()
    assert [table.name for table in made.tables] == sorted(before)
    for table in tables:
        table.insert([1, 2, 3])  # after the checkpoint

    again = call(start_server("--restore", made.directory))
    assert again.table_names() == sorted(before)
    for table in tables:
        restored = table.through(again)
        assert again.table(table.name).uid == table.uid
        assert lived_in(restored) == before[table.name]
        if restored.describe().size:
            assert set(restored.sample(300).keys) <= set(restored.live_keys())


def test_a_table_may_have_the_name_of_a_file(caller: Caller, start_server: StartServer, call: Call) -> None:
    names = ["checkpoint.json", "column-000.bin", "manifest.json"]
    for name in names:
        caller.create(name).insert([1, 2, 3])
    made = caller.checkpoint()
    again = call(start_server("--restore", made.directory))
    assert [again.table(name).describe().size for name in names] == [3, 3, 3]


def test_a_million_rows_are_copied_and_restored(caller: Caller, start_server: StartServer, call: Call) -> None:
    """More rows than are copied on the event loop."""
    table = caller.create(capacity=1_000_000)
    for first in range(0, 1_200_000, 100_000):
        table.insert(np.arange(first, first + 100_000), 1.0 + np.arange(100_000) % 7)
    made = caller.checkpoint(table.name)
    assert [(part.size, part.inserted, part.left_out) for part in made.tables] == [(1_000_000, 1_200_000, 0)]
    again = table.through(call(start_server("--restore", made.directory)))
    keys = np.arange(200_000, 1_200_000, 997)
    assert again.read(keys).values.tolist() == keys.tolist()
    assert again.read(keys).priorities.tolist() == (1.0 + keys % 100_000 % 7).tolist()
    assert again.stats().total_mass == table.stats().total_mass


def test_a_restored_table_outlives_its_server(
    caller: Caller, start_server: StartServer, call: Call, tmp_path: Path
) -> None:
    table = caller.create()
    table.insert(range(7))
    durable = start_server("--data-dir", str(tmp_path / "data"), "--restore", caller.checkpoint().directory)
    table.through(call(durable)).insert([7])
    durable.kill()
    again = start_server("--data-dir", str(tmp_path / "data"))
    assert table.through(call(again)).read(range(8)).values.tolist() == list(range(8))


def test_tables_that_are_there_are_not_overwritten(caller: Caller, start_server: StartServer, tmp_path: Path) -> None:
    caller.create("precious").insert([1])
    flags = ("--data-dir", str(tmp_path / "data"), "--restore", caller.checkpoint().directory)
    start_server(*flags).terminate()
    ended = run_to_its_end(*flags)
    assert ended.returncode == 1
    assert "table 'precious' already exists in" in ended.stderr


# While the server keeps serving.


def test_rows_that_come_during_a_checkpoint_are_in_it_whole_or_not_at_all(
    caller: Caller, keeping: ServerProcess, start_server: StartServer, call: Call
) -> None:
    """One writer inserts rows whose values are their keys, into a small ring that is quickly overwritten."""
    table = caller.create(capacity=40_000)
    stop = threading.Event()

    def insert() -> None:
        own, first = table.through(call(keeping)), 0
        while not stop.is_set():
            own.insert(np.arange(first, first + 500), np.arange(first, first + 500) * 1.0)
            first += 500

    thread = threading.Thread(target=insert)
    thread.start()
    try:
        wait_until(lambda: table.describe().inserted > 80_000, "the ring has been overwritten")
        made = [caller.checkpoint(keep=10) for _ in range(8)]
    finally:
        stop.set()
        thread.join()
    for checkpoint in made:
        (described,) = checkpoint.tables
        assert described.size + described.left_out == 40_000
        again = table.through(call(start_server("--restore", checkpoint.directory)))
        keys = again.live_keys()
        assert (len(keys), keys[-1] + 1) == (described.size, described.inserted)
        for part in np.array_split(keys, 2):
            rows = again.read(part)
            np.testing.assert_array_equal(rows.values, part)
            np.testing.assert_array_equal(rows.priorities, part * 1.0)


@pytest.mark.timed
def test_no_call_waits_for_a_checkpoint(caller: Caller, keeping: ServerProcess, call: Call) -> None:
    table = caller.create(capacity=1_000_000)
    for first in range(0, 1_000_000, 100_000):
        table.insert(np.arange(first, first + 100_000))
    copying = table.through(call(keeping)).caller

    def longest_call_s() -> float:
        """The longest call during a checkpoint. Other processes on the machine may also slow down calls."""
        longest = 0.0
        with ThreadPoolExecutor() as threads:
            copied = threads.submit(copying.checkpoint)
            while not copied.done():
                began = time.perf_counter()
                table.sample(64)
                table.insert([1])
                longest = max(longest, time.perf_counter() - began)
            copied.result()
        return longest

    assert min(longest_call_s() for _ in range(3)) < LONGEST_CALL_S


# Atomicity.


@pytest.mark.parametrize(("end", "after_s"), [("kill", 0.03), ("terminate", 0.01)])
def test_a_server_that_ends_amid_a_checkpoint_leaves_the_others_good(
    caller: Caller, keeping: ServerProcess, call: Call, folder: Path, end: str, after_s: float
) -> None:
    table = caller.create(capacity=1_000_000)
    for first in range(0, 1_000_000, 100_000):
        table.insert(np.arange(first, first + 100_000))
    good = caller.checkpoint().name

    def checkpoint() -> None:
        with contextlib.suppress(grpc.RpcError):
            caller.checkpoint()

    thread = threading.Thread(target=checkpoint)
    thread.start()
    time.sleep(after_s)
    getattr(keeping, end)()
    thread.join()
    keeping.restart()
    again = call(keeping)
    names = again.checkpoints()
    assert names[0] == good
    for name in names:
        assert again.verify(name).tables[0].size == 1_000_000
    assert {path.name for path in folder.iterdir()} == {"lock", "owner.json", *names}


def test_a_full_disk_leaves_the_last_checkpoint_good(start_server: StartServer, call: Call, tmp_path: Path) -> None:
    small = tmp_path / "small"
    server = start_server("--checkpoint-dir", str(small / "kept"), within=with_small_disk(small, 24))
    caller = call(server)
    schema = Schema({"frame": Column("uint8", (1 << 16,))})
    table = caller.create(schema=schema, capacity=1000)

    def insert(rows: int) -> None:
        for part in (50,) * (rows // 50) or (rows,):
            insertion = replay_pb2.Insertion(row_count=part)
            table.stub.Insert(replay_pb2.InsertRequest(table=table.name, insertion=insertion, rows=bytes(part << 16)))

    insert(100)
    good = caller.checkpoint().name
    insert(250)
    for _ in range(2):
        with refused("NO_SPACE"):
            caller.checkpoint()
    assert caller.checkpoints() == [good]
    assert caller.verify(good).tables[0].size == 100
    insert(1)
    table.reset()
    insert(10)
    assert caller.checkpoint().tables[0].size == 10


# Damage.


def files_of(directory: str) -> list[Path]:
    """All files of a checkpoint."""
    return sorted(path for path in Path(directory).rglob("*") if path.is_file())


def damages_to(content: bytes) -> list[bytes | None]:
    """Content with a flipped bit, a missing byte or an extra byte; None: a missing file."""
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    return [bytes(flipped), content[:-1], content + b"\0", None]


def test_a_damaged_file_is_refused_by_name(caller: Caller) -> None:
    caller.create("table").insert(range(20))
    made = caller.checkpoint()
    for path in files_of(made.directory):
        content, name = path.read_bytes(), str(path.relative_to(made.directory))
        for damaged in damages_to(content):
            path.unlink()
            if damaged is not None:
                path.write_bytes(damaged)
            with refused("CHECKPOINT_DAMAGED", checkpoint=made.name, file=name):
                caller.verify(made.name)
            path.write_bytes(content)
    assert caller.verify(made.name).name == made.name


def test_a_damaged_checkpoint_is_logged_once(caller: Caller, keeping: ServerProcess) -> None:
    caller.create("table")
    (manifest,) = Path(caller.checkpoint().directory).glob("*.json")
    manifest.write_bytes(b"x")
    for _ in range(3):
        assert caller.checkpoints() == []
    assert keeping.wait_for_log(str(manifest)).count(str(manifest)) == 1


def test_a_damaged_checkpoint_is_not_restored(caller: Caller, tmp_path: Path) -> None:
    caller.create("first").insert(range(20))
    caller.create("second").insert(range(20))
    made = caller.checkpoint()
    path = Path(made.directory) / "second" / "column-001.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    ended = run_to_its_end("--restore", made.directory, "--data-dir", str(tmp_path / "data"))
    assert ended.returncode == 1
    assert f"{path}: expected" in ended.stderr
    assert list((tmp_path / "data" / "tables").iterdir()) == []
    ended = run_to_its_end("--restore", str(tmp_path / "nowhere"), "--memory-dir", str(tmp_path))
    assert ended.returncode == 1
    assert "expected the directory of a checkpoint" in ended.stderr


# Removal.


def read_until(path: Path, then: Callable[[], object], read: Callable[[], T]) -> T:
    """Replace a file of a checkpoint with a pipe, so that ``then`` runs while the file is being read."""
    path.unlink()
    os.mkfifo(path)
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(read)
        pipe: list[int] = []

        def is_read() -> bool:
            with contextlib.suppress(OSError):
                pipe.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            return bool(pipe)

        wait_until(is_read, "the file is being read")
        try:
            then()
        finally:
            os.close(pipe[0])
        return reading.result()


def test_a_checkpoint_that_is_removed_while_it_is_verified_is_not_found(
    caller: Caller, keeping: ServerProcess, call: Call
) -> None:
    caller.create("table").insert(range(20))
    made = caller.checkpoint()

    def verify() -> None:
        with refused("CHECKPOINT_NOT_FOUND", checkpoint=made.name):
            call(keeping).verify(made.name)

    read_until(Path(made.directory) / "table" / "column-001.bin", lambda: caller.checkpoint(keep=1), verify)
    assert caller.checkpoints() == ["checkpoint-000002"]
    assert "damaged" not in keeping.log()


def test_a_checkpoint_that_is_removed_while_it_is_restored_is_named(caller: Caller, tmp_path: Path) -> None:
    caller.create("table").insert(range(20))
    made = caller.checkpoint()
    ended = read_until(
        Path(made.directory) / "table" / "column-001.bin",
        lambda: caller.checkpoint(keep=1),
        lambda: run_to_its_end("--restore", made.directory, "--data-dir", str(tmp_path / "data")),
    )
    assert ended.returncode == 1
    assert f"{made.directory} was removed while it was read" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list((tmp_path / "data" / "tables").iterdir()) == []


# Names, retention, flags.


def test_old_checkpoints_of_a_series_are_removed(caller: Caller) -> None:
    caller.create().insert([1])
    for _ in range(5):
        caller.checkpoint()
    caller.checkpoint(series="other")
    assert caller.checkpoints() == [*(f"checkpoint-00000{n}" for n in (3, 4, 5)), "other-000001"]
    caller.checkpoint(keep=1)
    assert caller.checkpoints() == ["other-000001", "checkpoint-000006"]


def test_names_cannot_leave_the_directory(caller: Caller, folder: Path) -> None:
    before = sorted(folder.parent.rglob("*"))
    for name in ("..", ".", "../escaped", "a/b", "/tmp/escaped", "", ".hidden", "a\0b", "x" * 128):
        if name:
            with refused("INVALID_FIELD", field="series"):
                caller.checkpoint(series=name)
        with refused("CHECKPOINT_NOT_FOUND"):
            caller.verify(name)
        with refused("CHECKPOINT_NOT_FOUND"):
            caller.verify(f"{name}-000001")
        assert sorted(folder.parent.rglob("*")) == before, name


def test_only_tables_that_are_there_are_copied(caller: Caller, folder: Path) -> None:
    kept, _ = caller.create(), caller.create()
    assert [table.name for table in caller.checkpoint(kept.name, kept.name).tables] == [kept.name]
    with refused("TABLE_NOT_FOUND", table="nobody"):
        caller.checkpoint(kept.name, "nobody")
    with refused("INVALID_FIELD", field="keep"):
        caller.checkpoint(keep=-1)
    assert caller.checkpoints() == ["checkpoint-000001"]


def test_checkpoints_are_written_now_and_then(start_server: StartServer, call: Call, folder: Path) -> None:
    server = start_server("--checkpoint-dir", str(folder), "--checkpoint-every", "0.2", "--keep-checkpoints", "2")
    caller = call(server)
    caller.create().insert(range(5))
    wait_until(lambda: "periodic-000004" in caller.checkpoints(), "four were written")
    wait_until(lambda: len(caller.checkpoints()) == 2, "the oldest were removed")  # after the next one is there
    server.terminate()
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("durability", ["process", "power"])
def test_a_restore_raises_no_alarm(caller: Caller, start_server: StartServer, tmp_path: Path, durability: str) -> None:
    """All rows of a checkpoint are verified."""
    caller.create().insert(range(50))
    made = caller.stub.Checkpoint(replay_pb2.CheckpointRequest()).checkpoint
    flags = ("--data-dir", str(tmp_path / "data"), "--durability", durability)
    log = start_server("--restore", made.directory, *flags).log()
    assert "restored: 50 rows" in log
    assert "WARNING" not in log
    assert "power loss" not in log


def test_without_tables_the_checkpoints_of_earlier_starts_are_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as after a kill and a restart, with the tables in memory."""
    root = Root.in_memory(tmp_path)
    catalog = Catalog(root)
    config = TableConfig("table", WHOLE, 10)

    async def test() -> None:
        checkpoints = Checkpoints(catalog, tmp_path / "checkpoints", keep=2)

        async def names_after(rounds: int) -> list[str]:
            for _ in range(rounds):
                await checkpoints.create_after(0.0)
            return [each.folder.name for each in (await checkpoints.all()).whole]

        await catalog.create(config)
        kept = await names_after(2)
        await catalog.drop("table", b"")
        assert await names_after(5) == kept == ["periodic-000001", "periodic-000002"]
        await catalog.create(config)
        assert await names_after(1) == ["periodic-000002", "periodic-000003"]
        await checkpoints.close()

    with caplog.at_level("INFO"):
        asyncio.run(test())
    assert caplog.text.count("no periodic checkpoint is written") == 1
    catalog.close()
    root.close()


def test_a_failed_periodic_checkpoint_is_tried_again_before_the_interval_ends(tmp_path: Path) -> None:
    root = Root.in_memory(tmp_path)
    catalog = Catalog(root)

    async def test() -> None:
        await catalog.create(TableConfig("table", WHOLE, 10))
        checkpoints = Checkpoints(catalog, tmp_path / "checkpoints", keep=2)
        interval_s = 1.0
        began = time.monotonic()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(checkpoints, "_write", {}.__getitem__)
            with pytest.raises(TypeError):
                await checkpoints.create_after(interval_s)
        assert time.monotonic() - began >= interval_s
        began = time.monotonic()
        await checkpoints.create_after(interval_s)
        assert time.monotonic() - began < interval_s
        assert [each.folder.name for each in (await checkpoints.all()).whole] == ["periodic-000001"]
        await checkpoints.close()

    asyncio.run(test())
    catalog.close()
    root.close()


def test_without_a_directory_there_are_none(start_server: StartServer, call: Call) -> None:
    caller = call(start_server())
    for ask in (caller.checkpoint, caller.checkpoints, lambda: caller.verify("checkpoint-000001")):
        with refused("CHECKPOINTS_OFF", setting="checkpoint_dir"):
            ask()
    assert run_to_its_end("--checkpoint-every", "5").returncode == 2


def test_two_servers_do_not_share_a_directory(keeping: ServerProcess, folder: Path, tmp_path: Path) -> None:
    ended = run_to_its_end("--checkpoint-dir", str(folder), "--memory-dir", str(tmp_path))
    assert ended.returncode == 1
    assert "in use by another server" in ended.stderr


def test_files_are_private_to_the_user(caller: Caller) -> None:
    caller.create().insert([1])
    made = caller.checkpoint()
    for path in [Path(made.directory), *Path(made.directory).rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0
