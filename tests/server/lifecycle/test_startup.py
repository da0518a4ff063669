"""Startup and its errors: flags, variables, the TOML file, the content of the disk."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from replay_proto.schema import Column, Schema
from replay_proto.v1 import replay_pb2
from replay_server.storage.root import Root
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import TableDirectory

from tests.support.caller import Caller, make_draw
from tests.support.deadlines import PATIENCE_S, wait_until
from tests.support.http_port import listening_ports
from tests.support.refusals import code_of, refused
from tests.support.rows import WHOLE
from tests.support.server_process import ServerProcess, run_to_its_end, server_command, server_environment

StartServer = Callable[..., ServerProcess]
Call = Callable[[ServerProcess], Caller]
CARTPOLE = """
[[tables]]
name = "cartpole"
capacity = 1_000
backend = "rank"
parameters = { alpha = 0.7 }
seed = 5
[tables.columns]
obs = { dtype = "float32", shape = [4] }
action = { dtype = "int64" }

[[tables]]
name = "acrobot"
capacity = 10
[tables.columns]
done = { dtype = "bool" }
"""


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port that is already in use."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def started_in(folder: Path) -> list[Path]:
    """Remaining files below a memory directory."""
    return sorted(folder.iterdir()) if folder.exists() else []


# Successful starts.


def test_it_listens_on_this_machine_alone_unless_told_otherwise(start_server: StartServer) -> None:
    server = start_server()
    assert listening_ports(server) == {("127.0.0.1", server.port)}


def test_health_says_that_it_serves(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "replay.v1.ReplayService"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_describes_every_rpc(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.address) as channel:
        described = ProtoReflectionDescriptorDatabase(channel)
        assert "replay.v1.ReplayService" in set(described.get_services())
        file = described.FindFileContainingSymbol("replay.v1.ReplayService")
    assert [method.name for method in file.service[0].method] == [
        method.name for method in replay_pb2.DESCRIPTOR.services_by_name["ReplayService"].methods
    ]


def test_reflection_can_be_left_out(start_server: StartServer) -> None:
    server = start_server("--no-reflection")
    with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError) as error:
        list(ProtoReflectionDescriptorDatabase(channel).get_services())
    assert code_of(error.value) is grpc.StatusCode.UNIMPLEMENTED


def test_tables_of_the_config_file_are_made_at_start(start_server: StartServer, call: Call, tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text(CARTPOLE)
    caller = call(start_server("--config", str(file)))
    assert caller.table_names() == ["acrobot", "cartpole"]
    config = caller.table("cartpole").describe().config
    assert (config.capacity, config.backend.name, config.seed) == (1000, "rank", 5)
    assert dict(config.backend.parameters) == {"alpha": 0.7}
    assert [column.name for column in config.columns] == ["obs", "action"]
    assert list(config.columns[0].stored.shape) == [4]
    assert config.columns[1].stored.data_type == replay_pb2.DATA_TYPE_INT64


def test_tables_of_the_config_file_keep_their_rows(start_server: StartServer, call: Call, tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text(CARTPOLE)
    server = start_server("--config", str(file), "--data-dir", str(tmp_path / "data"))
    table = call(server).table("acrobot")
    request = replay_pb2.InsertRequest(
        table="acrobot", insertion=replay_pb2.Insertion(row_count=3), rows=bytes([1, 0, 1])
    )
    table.stub.Insert(request)
    server.terminate()
    server.restart()
    again = table.through(call(server))
    assert again.describe().uid == table.uid
    assert again.read(range(3)).rows == bytes([1, 0, 1])


# Sources of settings.


def max_reply_mb(server: ServerProcess) -> int:
    """The size limit of replies, a setting that is visible from outside."""
    with Caller(server.address) as caller:
        table = caller.create()
        table.insert([1])
        with refused("TOO_LARGE") as refusal:
            table.sample(2**40)
    return int(refusal.metadata["limit"]) // (1 << 20) + 1


def test_a_flag_comes_before_a_variable_and_a_variable_before_the_file(
    start_server: StartServer, tmp_path: Path
) -> None:
    file = tmp_path / "server.toml"
    file.write_text("max_reply_mb = 3\nhost = '127.0.0.1'\n")
    variable = {"REPLAY_SERVER_MAX_REPLY_MB": "5"}
    assert max_reply_mb(start_server("--config", str(file))) == 3
    assert max_reply_mb(start_server("--config", str(file), environment=variable)) == 5
    assert max_reply_mb(start_server("--config", str(file), "--max-reply-mb", "7", environment=variable)) == 7


def test_with_the_smallest_messages_most_of_one_is_room_for_rows(start_server: StartServer, call: Call) -> None:
    table = call(start_server("--max-request-mb", "1", "--max-reply-mb", "1")).create(capacity=100_000)
    table.insert(range(15_000))
    assert len(table.sample(15_000).values) == 15_000
    assert table.read(range(15_000)).values.tolist() == list(range(15_000))


def test_the_longest_row_that_a_table_may_have_can_be_drawn(start_server: StartServer, call: Call) -> None:
    caller = call(start_server("--max-request-mb", "1", "--max-reply-mb", "1"))
    with refused("TOO_LARGE", bound="bytes of a row") as refusal:
        caller.create(capacity=1, schema=Schema({"x": Column("uint8", (1 << 20,))}))
    longest = int(refusal.metadata["limit"])
    table = caller.create(capacity=1, schema=Schema({"x": Column("uint8", (longest,))}))
    insertion = replay_pb2.Insertion(row_count=1)
    table.stub.Insert(replay_pb2.InsertRequest(table=table.name, insertion=insertion, rows=bytes(longest)))
    answer = table.stub.Sample(replay_pb2.SampleRequest(table=table.name, draw=make_draw(1)))
    assert len(answer.rows) == longest


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--max-reply-mb", "0"], "--max-reply-mb"),
        (["--no-such-flag"], "no-such-flag"),
        (["--config", "no-such-file.toml"], "no-such-file.toml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_setting_that_cannot_be_used_is_named(flags: list[str], complaint: str) -> None:
    ended = run_to_its_end(*flags)
    assert ended.returncode == 2
    assert complaint in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


@pytest.mark.parametrize(
    ("flags", "status", "complaint"),
    [
        (["--sync-every", "0"], 2, "--sync-every: input should be greater than 0, got '0'"),
        (["--sync-every", "inf"], 2, "--sync-every: input should be a finite number, got 'inf'"),
        (["--drain-s", "nan", "--keepalive-s", "inf"], 2, "--keepalive-s: input should be a finite number"),
        (["--durability", "rocket"], 2, "--durability: input should be 'process' or 'power', got 'rocket'"),
        (["--durability", "power"], 2, "durability power needs a data_dir on a disk"),
        (["--tls-cert", "a"], 2, "expected tls_cert and tls_key together, got one of them"),
        (["--config", "{folder}"], 2, "--config: expected a TOML file, got '{folder}': Is a directory"),
        (["--data-dir", "{file}"], 1, "data_dir: expected a writable directory, got '{file}': "),
        (["--memory-dir", "{file}"], 1, "memory_dir: expected a writable directory, got '{file}'"),
        (["--checkpoint-dir", "{file}"], 1, "checkpoint_dir: expected a writable directory, got"),
        (["--restore", "nowhere"], 1, "expected the directory of a checkpoint, got 'nowhere', which is missing"),
        (["--restore", "{folder}"], 1, "expected the directory of a checkpoint, got '{folder}', which has no _check"),
        (["--restore", "{file}"], 1, "expected the directory of a checkpoint, got '{file}', which is not a directory"),
        (["--tls-cert", "nowhere", "--tls-key", "{file}"], 1, "nowhere: expected a PEM file, got: No such file"),
        (["--tls-cert", "{file}", "--tls-key", "{folder}"], 1, "{folder}: expected a PEM file, got: Is a directory"),
        (["--tokens", "{file}"], 1, "{file}: expected TOML in UTF-8, got invalid bytes"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_setting_is_told_in_one_line(tmp_path: Path, flags: list[str], status: int, complaint: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\xff\xfe")
    file.chmod(0o600)
    given = [flag.format(file=file, folder=tmp_path) for flag in flags]
    ended = run_to_its_end(*given, *(() if "--memory-dir" in flags else ("--memory-dir", str(tmp_path))))
    assert ended.returncode == status
    lines = [line for line in ended.stderr.splitlines() if complaint.format(file=file, folder=tmp_path) in line]
    assert len(lines) == 1, ended.stderr
    assert len(ended.stderr.splitlines()) == len(flags) // 2 if status == 2 and "--config" not in flags else True
    assert not any(word in ended.stderr for word in ("Traceback", "pydantic", "FromFile", "Errno"))


@pytest.mark.parametrize("content", ["prot = 5", "port = "], ids=["unknown setting", "no TOML"])
def test_a_file_that_cannot_be_used_is_complained_about(tmp_path: Path, content: str) -> None:
    file = tmp_path / "server.toml"
    file.write_text(content)
    ended = run_to_its_end("--memory-dir", str(tmp_path), "--config", str(file))
    assert ended.returncode == 2
    assert ("prot" if "prot" in content else str(file)) in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("change", "complaint"),
    [(("capacity = 10", "capacity = 0"), "capacity"), (("alpha = 0.7", "beta = 0.7"), "beta")],
    ids=["field", "parameter"],
)
def test_a_table_of_the_file_that_cannot_be_made_is_named(
    tmp_path: Path, change: tuple[str, str], complaint: str
) -> None:
    file = tmp_path / "server.toml"
    file.write_text(CARTPOLE.replace(*change))
    memory = tmp_path / "memory"
    memory.mkdir()
    ended = run_to_its_end("--memory-dir", str(memory), "--config", str(file))
    assert ended.returncode == 1
    assert complaint in ended.stderr
    assert str(file) in ended.stderr
    assert "Traceback" not in ended.stderr
    assert started_in(memory) == []


# Obstacles.


def test_a_port_that_is_taken_is_named(taken_port: int, tmp_path: Path) -> None:
    ended = run_to_its_end("--port", str(taken_port), "--memory-dir", str(tmp_path), forked=False)
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{taken_port}" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""
    assert started_in(tmp_path) == []


def test_a_port_that_is_taken_is_found_out_before_anything_is_restored(
    start_server: StartServer, call: Call, tmp_path: Path
) -> None:
    server = start_server("--checkpoint-dir", str(tmp_path / "checkpoints"))
    caller = call(server)
    caller.create().insert(range(5))
    name = caller.checkpoint().name
    data = tmp_path / "data"
    restore = ("--data-dir", str(data), "--restore", str(tmp_path / "checkpoints" / name))
    ended = run_to_its_end("--port", str(server.port), *restore)
    assert ended.returncode == 1
    assert "cannot listen on" in ended.stderr
    assert list((data / "tables").iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")
def test_a_directory_that_another_user_made_is_refused_unless_told_otherwise(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    for folder in (data, elsewhere):
        folder.mkdir()
        folder.chmod(0o711)
    (elsewhere / "secret").touch(mode=0o600)
    (data / "lock").symlink_to(elsewhere / "made")
    (data / "tables").symlink_to(elsewhere)
    os.chown(data, 54_321, 54_321)
    for flags in ((), ("--group", "root"), ("--trust-dirs",)):
        ended = run_to_its_end("--data-dir", str(data), *flags)
        assert ended.returncode == 1
        assert f"data_dir: {data} is a directory of user 54321" in ended.stderr
        assert "Traceback" not in ended.stderr
        assert [path.name for path in elsewhere.iterdir()] == ["secret"]
        assert (elsewhere.stat().st_mode & 0o777, (elsewhere / "secret").stat().st_mode & 0o777) == (0o711, 0o600)
    for link in ("lock", "tables"):
        (data / link).unlink()
    ended = run_to_its_end("--data-dir", str(data), "--trust-dirs", "--exit-with-parent")
    assert ended.returncode == 0, ended.stderr
    assert f"WARNING replay_server  data_dir: {data} is a directory of user 54321" in ended.stderr


def test_a_data_directory_in_use_is_refused(start_server: StartServer, call: Call, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    first = start_server("--data-dir", data)
    table = call(first).create()
    table.insert(range(5))
    ended = run_to_its_end("--data-dir", data)
    assert ended.returncode == 1
    assert "in use by another server" in ended.stderr
    assert data in ended.stderr
    assert table.read(range(5)).values.tolist() == list(range(5))
    first.kill()
    assert call(start_server("--data-dir", data)).table_names() == [table.name]


def test_a_stored_table_that_differs_from_the_file_is_named(
    start_server: StartServer, call: Call, tmp_path: Path
) -> None:
    data, file = str(tmp_path / "data"), tmp_path / "server.toml"
    file.write_text(CARTPOLE)
    start_server("--config", str(file), "--data-dir", data).terminate()
    file.write_text(CARTPOLE.replace("alpha = 0.7", "alpha = 0.5"))
    ended = run_to_its_end("--config", str(file), "--data-dir", data)
    assert ended.returncode == 1
    for word in ("cartpole", "alpha", "0.7", "0.5"):
        assert word in ended.stderr
    assert "Traceback" not in ended.stderr
    file.write_text(CARTPOLE)
    assert call(start_server("--config", str(file), "--data-dir", data)).table_names() == ["acrobot", "cartpole"]


# Corruption.


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """The directory of a table whose server has exited."""
    root = Root.durable(tmp_path / "data")
    TableDirectory.create(root.tables, TableConfig("stored", WHOLE, capacity=100)).close()
    root.close()
    return root.tables / "stored"


def test_a_file_that_is_damaged_is_named_and_left_alone(stored: Path) -> None:
    os.truncate(stored / "column-001.bin", 3)
    before = {path.name: path.stat().st_size for path in stored.iterdir()}
    ended = run_to_its_end("--data-dir", str(stored.parent.parent))
    assert ended.returncode == 1
    assert str(stored / "column-001.bin") in ended.stderr
    assert "Traceback" not in ended.stderr
    assert {path.name: path.stat().st_size for path in stored.iterdir()} == before


# Tables in memory.


def test_what_a_killed_server_left_in_memory_is_swept_by_the_next(
    start_server: StartServer, call: Call, tmp_path: Path
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    living = start_server("--memory-dir", str(memory))
    dead = start_server("--memory-dir", str(memory))
    table = call(living).create()
    call(dead).create().insert(range(10))
    table.insert(range(10))
    dead.kill()
    assert len(started_in(memory)) == 2
    start_server("--memory-dir", str(memory))
    assert len(started_in(memory)) == 2
    assert table.read(range(10)).values.tolist() == list(range(10))


# The parent process.


def test_a_server_ends_with_the_process_that_holds_its_input(tmp_path: Path) -> None:
    """The parent is killed, so it cannot stop the server itself."""
    memory = tmp_path / "memory"
    memory.mkdir()
    start = (
        "import subprocess, sys, time\n"
        "server = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)\n"
        "server.stdout.readline()\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    command = server_command("--port", "0", "--memory-dir", str(memory), "--exit-with-parent")
    with subprocess.Popen(
        [sys.executable, "-c", start, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=server_environment({}),
    ) as parent:
        assert parent.stdout is not None
        server = psutil.Process(int(parent.stdout.readline()))
        assert len(started_in(memory)) == 1
        parent.kill()
    wait_until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, "the server has ended")
    assert started_in(memory) == []


def test_a_server_without_that_flag_lives_on_when_its_input_ends(start_server: StartServer, call: Call) -> None:
    server = start_server(stdin=subprocess.DEVNULL)
    assert call(server).table_names() == []
    assert server.process.poll() is None


def test_a_server_whose_input_ends_at_once_ends_in_order(tmp_path: Path) -> None:
    began = time.monotonic()
    ended = run_to_its_end("--memory-dir", str(tmp_path), "--exit-with-parent", forked=False)
    assert ended.returncode == 0
    assert time.monotonic() - began < PATIENCE_S
    assert started_in(tmp_path) == []


def test_a_server_that_watches_its_input_ends_in_order_when_it_is_told_to(start_server: StartServer) -> None:
    server = start_server("--exit-with-parent", stdin=subprocess.PIPE)
    assert server.terminate() == 0
    assert "Fatal" not in server.log()


def test_the_garbage_collector_never_looks_through_what_a_server_loads() -> None:
    """Garbage collection would block calls: scanning numba's modules alone takes 60 ms."""
    seen = (
        "import gc; from replay_server.__main__ import load_server; load_server(); "
        "print(gc.isenabled(), gc.get_freeze_count(), len(gc.get_objects()))"
    )
    done = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    is_enabled, frozen, left = done.stdout.split()
    assert is_enabled == "True"
    assert int(frozen) > 50_000
    assert int(left) < 5_000


def test_an_ipv6_address_has_brackets() -> None:
    ended = run_to_its_end("--host", "2001:db8::1", "--insecure")
    assert ended.returncode == 1
    assert "cannot listen on [2001:db8::1]:" in ended.stderr
