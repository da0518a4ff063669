"""A directory belongs to one running server, on one storage; what differs from its owner record is noticed."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from replay_server.files import held_folders, owner
from replay_server.files.owner import InUseError, UnsuitableError
from replay_server.rpc.local_socket.listener import SOCKET_NAME
from replay_server.storage.root import Root

from tests.support.bind_mounts import bound
from tests.support.caller import Caller, new_name
from tests.support.deadlines import wait_until
from tests.support.http_port import get
from tests.support.owner_records import change_record, record_of
from tests.support.refusals import refused
from tests.support.server_process import ServerProcess, run_to_its_end, server_environment
from tests.support.small_disk import mounted_disk
from tests.support.warm_program import SERVER, warm_program

StartServer = Callable[..., ServerProcess]
POWER = ("--durability", "power")
VERIFIED = "rows are valid after a power loss"
HTTP = ("--http-port", "0")


def copy_of(data: Path, place: Path) -> Path:
    """A copy of the directory of a server, which ends at the moment when its record is copied."""
    shutil.copytree(data, place, ignore=shutil.ignore_patterns(SOCKET_NAME))
    change_record(place, is_running=False)
    return place


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Foreign owners of this process are watched for a short time."""
    monkeypatch.setattr(owner, "WATCH_S", 0.3)
    monkeypatch.setattr(owner, "_LOOK_S", 0.02)


# Storage.


def test_a_start_that_fails_does_not_vouch_for_the_tables_of_a_killed_server(
    start_server: StartServer, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    server = start_server("--data-dir", str(data), *POWER)
    with Caller(server.address) as caller:
        caller.create(capacity=10).insert(range(10))
    server.kill()
    assert record_of(data).tables == "stored"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = run_to_its_end("--data-dir", str(data), "--port", str(taken.getsockname()[1]))
    assert ended.returncode == 1
    assert record_of(data).tables == "stored"


def test_a_copy_of_a_running_directory_is_verified(start_server: StartServer, tmp_path: Path) -> None:
    """Its pages are of different moments, although the machine never went down."""
    server = start_server("--data-dir", str(tmp_path / "data"), *POWER)
    with Caller(server.address) as caller:
        table = caller.create(capacity=1000)
        table.insert(range(1000))
        copy = copy_of(tmp_path / "data", tmp_path / "copy")
        with (copy / "tables" / table.name / "column-000.bin").open("r+b") as torn:
            torn.write(bytes(64))
    started = start_server("--data-dir", str(copy))
    started.wait_for_log(VERIFIED)
    with Caller(started.address) as caller:
        assert caller.table(table.name).stats().lost > 0
    started.terminate()
    started.restart()
    assert started.log().count(VERIFIED) == 1, "now the copy is the original"


def test_an_archive_that_is_unpacked_over_a_directory_is_a_copy(start_server: StartServer, tmp_path: Path) -> None:
    data, archive = tmp_path / "data", tmp_path / "archive.tar"
    server = start_server("--data-dir", str(data), *POWER)
    with Caller(server.address) as caller:
        caller.create(capacity=100).insert(range(50))
    packing = ["tar", "-C", str(data), "--exclude", SOCKET_NAME, "-cf", str(archive), "."]
    # 1: a file was written to meanwhile, as by a server that syncs.
    assert subprocess.run(packing, check=False).returncode in (0, 1)
    server.kill()
    subprocess.run(["tar", "-C", str(data), "-xf", str(archive)], check=True)
    change_record(data, is_running=False)
    server.restart()
    server.wait_for_log(VERIFIED)


def test_without_checksums_a_copy_is_served_with_a_warning_and_refused_if_it_must_be_whole(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server("--data-dir", str(tmp_path / "data"))
    with Caller(server.address) as caller:
        table = caller.create(capacity=100)
        table.insert(range(50))
    copy = copy_of(tmp_path / "data", tmp_path / "copy")
    refusal = run_to_its_end("--data-dir", str(copy), *POWER)
    assert refusal.returncode == 1
    assert f"{table.name}: its directory was copied" in refusal.stderr
    assert "--durability process" in refusal.stderr
    started = start_server("--data-dir", str(copy))
    started.wait_for_log(f"table {table.name}:")
    started.wait_for_log("rows may be torn")


def test_a_killed_server_s_directory_is_no_copy(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server("--data-dir", str(tmp_path / "data"), *POWER)
    with Caller(server.address) as caller:
        caller.create(capacity=100).insert(range(50))
    first = record_of(tmp_path / "data")
    server.kill()
    server.restart()
    second = record_of(tmp_path / "data")
    assert VERIFIED not in server.log()
    assert first.id != second.id, "an id is drawn at each start"
    assert (first.is_running, first.tables, first.storage) == (second.is_running, second.tables, second.storage)
    server.terminate()
    assert (record_of(tmp_path / "data").is_running, record_of(tmp_path / "data").tables) == (False, "synced")


def test_a_start_that_ends_before_the_tables_are_verified_leaves_the_doubt(tmp_path: Path) -> None:
    Root.durable(tmp_path / "data").close()
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    for _ in range(2):
        root = Root.durable(tmp_path / "copy")
        assert root.owner.doubt is not None
        root.close()
    root = Root.durable(tmp_path / "copy")
    root.owner.opened()
    root.close()
    root = Root.durable(tmp_path / "copy")
    assert root.owner.doubt is None
    root.close()


# Other servers.


def test_a_second_server_is_refused_where_it_does_not_see_the_first_ones_lock(
    start_server: StartServer, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with bound(data, tmp_path / "seen") as seen:
        server = start_server("--data-dir", str(data))
        with (seen / held_folders.LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises no error
        refusal = run_to_its_end("--data-dir", str(seen))
        assert refusal.returncode == 1
        assert f"{seen} is in use by the server with process {server.pid} on {os.uname().nodename}" in refusal.stderr
        assert "--data-dir" in refusal.stderr


def test_an_owner_on_another_machine_that_is_dead_is_followed(tmp_path: Path, brief: None) -> None:
    Root.durable(tmp_path).close()
    change_record(tmp_path, boot_id="0" * 36, host="elsewhere", is_running=True, tables="stored")
    root = Root.durable(tmp_path)
    assert root.owner.doubt is not None
    root.close()


def test_an_owner_on_another_machine_that_lives_is_not_followed(tmp_path: Path, brief: None) -> None:
    theirs = Root.durable(tmp_path)
    theirs.owner.keep()
    change_record(tmp_path, boot_id="0" * 36, host="elsewhere")
    fcntl.flock(theirs._held._lock, fcntl.LOCK_UN)
    monkey = pytest.MonkeyPatch()
    monkey.setattr(owner, "WATCH_S", 3 * owner.HEARTBEAT_S)
    try:
        with pytest.raises(InUseError, match="on elsewhere"):
            Root.durable(tmp_path)
    finally:
        monkey.undo()
    theirs.close()


@pytest.mark.parametrize("flag", ["--data-dir", "--checkpoint-dir"])
def test_a_start_that_watches_another_server_ends_at_once(tmp_path: Path, flag: str) -> None:
    folder, log = tmp_path / "folder", tmp_path / "log"
    held_folders.hold(folder, flag).close()
    change_record(folder, boot_id="0" * 36, host="elsewhere", is_running=True)
    with log.open("a") as stderr:
        flags = ("--port", "0", flag, str(folder))
        server = warm_program(SERVER).start(flags, server_environment({}), subprocess.DEVNULL, stderr.fileno())
    wait_until(lambda: "watching its heartbeat" in log.read_text(), "it watches")
    server.terminate()
    assert server.wait(20) == 0
    assert "stopped while watching the heartbeat of another server" in log.read_text()


def test_tables_in_memory_are_not_swept_through_another_mount(start_server: StartServer, tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    with bound(memory, tmp_path / "seen") as seen:
        first = start_server("--memory-dir", str(memory))
        with Caller(first.address) as caller:
            table = caller.create(capacity=100)
            start_server("--memory-dir", str(seen))
            assert Path(table.describe().directory).exists()
            table.insert(range(5))
            caller.create(capacity=100)


def test_a_server_notices_that_another_one_has_taken_its_directory(tmp_path: Path) -> None:
    """As after it was suspended for longer than the other one watched it."""
    root = Root.durable(tmp_path)
    change_record(tmp_path, id=b"x" * 16, host="elsewhere")
    root.owner.look()
    assert root.owner.loss is not None
    assert "was taken by the server" in root.owner.loss
    root.close()
    assert record_of(tmp_path).id == b"x" * 16, "the other one's record stays"
    assert record_of(tmp_path).is_running


# A directory that is removed.


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs."""
    with mounted_disk(tmp_path / "disk", 64) as mounted:
        yield mounted


@pytest.mark.parametrize("flag", ["--data-dir", "--memory-dir"])
@pytest.mark.parametrize("end", ["removed", "unmounted"])
def test_a_directory_that_is_removed_under_its_server_is_told(
    start_server: StartServer, disk: Path, flag: str, end: str
) -> None:
    folder = disk / "data"
    folder.mkdir(mode=0o700)
    server = start_server(flag, str(folder), *HTTP)
    with Caller(server.address) as caller:
        table = caller.create(capacity=100)
        table.insert(range(50))
        if end == "removed":
            shutil.rmtree(folder)
        else:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)
        with refused("STORAGE_LOST") as refusal:
            caller.create(new_name())
        assert "while this server ran" in refusal.message
        assert get(server, "/readyz").status == 503
        with refused("STORAGE_LOST"):
            table.drop()
        assert table.sample(10).values.max() < 50
        if flag == "--data-dir":
            with refused("STORAGE_LOST"):
                table.insert(range(5))
            with refused("STORAGE_LOST"):
                table.reset()
        else:
            table.insert(range(5))
        assert "replay_rows_inserted_total" in get(server, "/metrics").text
        assert get(server, "/healthz").status == 200
        assert server.wait_for_log(told := "what it stores from now on would be lost").count(told) == 1
    assert "Traceback" not in server.log()


def test_the_heartbeat_finds_out_too(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server("--data-dir", str(tmp_path / "data"), *HTTP)
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    wait_until(lambda: get(server, "/readyz").status == 503, "it looks")


def test_the_health_service_follows_the_directory(start_server: StartServer, tmp_path: Path) -> None:
    data, away, question = tmp_path / "data", tmp_path / "away", health_pb2.HealthCheckRequest()
    serving, lost = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    server = start_server("--data-dir", str(data))
    with Caller(server.address) as caller:
        health = health_pb2_grpc.HealthStub(caller.channel)
        watching = health.Watch(question, timeout=60)
        assert next(watching).status == serving
        for old, new, status in ((data, away, lost), (away, data, serving)):
            old.rename(new)
            assert next(watching).status == status
            assert health.Check(question, timeout=60).status == status


def test_a_checkpoint_directory_that_is_removed_is_told(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server("--checkpoint-dir", str(tmp_path / "checkpoints"))
    with Caller(server.address) as caller:
        caller.create(capacity=100).insert(range(5))
        shutil.rmtree(tmp_path / "checkpoints")
        with refused("STORAGE_LOST", folder=str(tmp_path / "checkpoints")):
            caller.checkpoint()


# File systems that cannot do it.


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_file: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    for use in (Root.durable, Root.in_memory):
        with pytest.raises(UnsuitableError, match=r"with locks \(flock\), got 'No locks available'"):
            use(tmp_path)


def test_a_file_system_without_shared_maps_is_named(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with bound(data, tmp_path / "seen", "-o", "direct_io") as seen:
        refusal = run_to_its_end("--data-dir", str(seen))
    assert refusal.returncode == 1
    assert f"{seen}: expected a file system whose files can be mapped into shared memory (mmap)" in refusal.stderr


def test_a_file_system_that_cannot_reserve_space_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_file: int, _offset: int, _size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(UnsuitableError, match=r"reserve space for files \(posix_fallocate\)"):
        Root.durable(tmp_path)
    monkeypatch.undo()
    Root.durable(tmp_path).close()


def test_a_machine_that_does_not_tell_its_boot_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "_BOOT_ID", tmp_path / "nothing")
    with pytest.raises(UnsuitableError, match=r"expected the id of this boot"):
        Root.durable(tmp_path / "data")
