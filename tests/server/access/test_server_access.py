"""Servers with tokens, and servers that listen for other machines."""

from __future__ import annotations

import grp
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from replay_client import (
    Column,
    PermissionDeniedError,
    ReplayClient,
    UnauthenticatedError,
)
from replay_proto.access.exposure import ExposedError, Protection, check_exposure, is_loopback
from replay_proto.access.tokens import REFRESH_S
from replay_proto.v1 import replay_pb2, replay_pb2_grpc

from tests.support.access import (
    ADMIN,
    ALL,
    EXPIRED,
    MINE,
    OTHER,
    READ,
    WRITE,
    WRONG,
    Authority,
    tls_flags,
    token_entry,
    write_usual_tokens,
)
from tests.support.deadlines import wait_until
from tests.support.refusals import code_of, refused
from tests.support.server_process import ServerProcess, run_to_its_end
from tests.support.wire import METHODS, call_raw

StartServer = Callable[..., ServerProcess]
COLUMNS = {"x": Column("int64")}
NAME = f"{MINE}table"
SHARED_MODES = {"lock": 0o600, ".socket": 0o660}
"""Modes of files that are not group-readable data, if a group shares the files."""


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return write_usual_tokens(tmp_path / "tokens.toml")


@pytest.fixture
def server(start_server: StartServer, tokens: Path) -> ServerProcess:
    """A separate server with the usual tokens."""
    return start_server("--tokens", str(tokens), "--log-level", "debug")


@pytest.fixture
def client_of(server: ServerProcess) -> Iterator[Callable[[str | None], ReplayClient]]:
    """Creates clients with a token."""
    made: list[ReplayClient] = []

    def connect(token: str | None) -> ReplayClient:
        made.append(ReplayClient(server.address, token=token))
        return made[-1]

    yield connect
    for client in made:
        client.close()


ClientOf = Callable[[str | None], ReplayClient]


def test_callers_are_told_by_types_what_is_wrong(client_of: ClientOf) -> None:
    with pytest.raises(UnauthenticatedError, match="the call has none"):
        client_of(None).tables()
    with pytest.raises(UnauthenticatedError, match="unknown to this server"):
        client_of(WRONG).tables()
    with pytest.raises(UnauthenticatedError, match="'long ago' expired at 2020-01-01"):
        client_of(EXPIRED).tables()
    with pytest.raises(PermissionDeniedError, match="'reader' lacks the right admin on table 'mine-table'") as no:
        client_of(READ).create_table(NAME, columns=COLUMNS, capacity=10)
    assert no.value.metadata == {"right": "admin", "table": NAME}
    with pytest.raises(PermissionDeniedError) as no:
        client_of(WRITE).tables()
    assert no.value.metadata == {"right": "read", "table": ""}


def test_actors_and_learners_work_with_the_rights_they_need(client_of: ClientOf) -> None:
    client_of(ADMIN).create_table(NAME, columns=COLUMNS, capacity=100)
    with client_of(WRITE).table(NAME).writer() as writer:
        for number in range(20):
            writer.append(x=number)
        writer.flush(timeout_s=10)
    reader = client_of(READ).table(NAME)
    with reader.sampler(4, beta=0.4) as sampler:
        batch = next(sampler)
        sampler.update_priorities(batch, np.ones(4))
        with pytest.raises(PermissionDeniedError):
            sampler.flush()
    with client_of(ALL).table(NAME).sampler(4, beta=0.4) as sampler:
        batch = next(sampler)
        sampler.update_priorities(batch, np.ones(4))
        sampler.flush()


def test_only_tables_that_a_caller_may_read_are_shown(client_of: ClientOf) -> None:
    client_of(ALL).create_table(NAME, columns=COLUMNS, capacity=10)
    client_of(OTHER).create_table("other-table", columns=COLUMNS, capacity=10)
    for token, names in ((READ, [NAME]), (ALL, [NAME]), (OTHER, ["other-table"])):
        assert [table.name for table in client_of(token).tables()] == names
        assert list(client_of(token).stats().tables) == names


def test_only_who_may_read_learns_where_the_files_are(client_of: ClientOf) -> None:
    assert client_of(ADMIN).create_table(NAME, columns=COLUMNS, capacity=10).describe().directory == ""
    assert client_of(WRITE).table(NAME).describe().directory == ""
    assert client_of(READ).table(NAME).describe().directory.endswith(f"/{NAME}")
    assert client_of(ALL).create_table(NAME, columns=COLUMNS, capacity=10).describe().directory.endswith(f"/{NAME}")


def test_a_token_that_is_taken_away_ends_what_it_began(client_of: ClientOf, tokens: Path) -> None:
    client_of(ALL).create_table(NAME, columns=COLUMNS, capacity=10)
    client = client_of(WRITE)
    writer = client.table(NAME).writer()
    writer.append(x=1)
    writer.flush(timeout_s=10)
    tokens.write_text(token_entry("reader", READ, ["read"], [f"{MINE}*"]))

    def is_refused() -> bool:
        try:
            client.table(NAME)
        except UnauthenticatedError:
            return True
        return False

    wait_until(is_refused, "the change is noticed")
    with pytest.raises(UnauthenticatedError):
        client.table(NAME)
    with pytest.raises(UnauthenticatedError):  # noqa: PT012  # whichever comes first after the stream has ended
        writer.append(x=2)
        writer.flush(timeout_s=10)
    with pytest.raises(UnauthenticatedError):
        writer.close()
    assert client_of(READ).table(NAME).describe().inserted == 1


def test_a_token_that_is_added_is_known_soon(client_of: ClientOf, tokens: Path, server: ServerProcess) -> None:
    new = "new-" + "y" * 20
    tokens.write_text(tokens.read_text() + token_entry("new", new, ["read"]))

    def is_known() -> bool:
        try:
            return client_of(new).tables() == []
        except UnauthenticatedError:
            return False

    wait_until(is_known, f"the change is noticed, which takes {REFRESH_S} s")
    assert new not in server.wait_for_log("tokens.toml has changed and was read again")


def test_metadata_that_is_no_token_is_refused(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.address) as channel:
        stub = replay_pb2_grpc.ReplayServiceStub(channel)
        strange: tuple[tuple[tuple[str, str | bytes], ...], ...] = (
            (("authorization", READ),),
            (("authorization", f"Basic {READ}"),),
            (("authorization", f"Bearer {READ}"), ("authorization", f"Bearer {ALL}")),
            (("authorization-bin", READ.encode()),),
            (("token", READ),),
        )
        for metadata in strange:
            with refused("UNAUTHENTICATED"):
                stub.ListTables(replay_pb2.ListTablesRequest(), metadata=metadata)


def test_nothing_of_a_refused_call_is_looked_at(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.address) as channel:
        for method in METHODS:
            with refused("UNAUTHENTICATED"):
                call_raw(channel, method, b"\xff\xff no message")


HOSTILE_NAMES = (
    *("../up", "..", ".", "/tmp/up", "a/../../up", "a/b", ".hidden", ".new-0", "a\0b", "", "-x", "a" * 129),
    *("mine-\n", "mine-/../x", "mine-\u2024\u2024/x", "~", "mine-\\x"),
)


def test_no_name_leads_out_of_the_tables(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server("--data-dir", str(tmp_path / "root" / "data"))
    before = sorted(tmp_path.rglob("*"))
    insertion = replay_pb2.Insertion(row_count=1)
    with grpc.insecure_channel(server.address) as channel:
        for name in HOSTILE_NAMES:
            config = replay_pb2.TableConfig(name=name, capacity=10)
            config.columns.add(name="x").stored.data_type = replay_pb2.DATA_TYPE_INT64
            with refused("INVALID_FIELD", field="name"):
                call_raw(channel, "CreateTable", replay_pb2.CreateTableRequest(config=config).SerializeToString())
            requests: dict[str, Message] = {
                "DescribeTable": replay_pb2.DescribeTableRequest(table=name),
                "DropTable": replay_pb2.DropTableRequest(table=name),
                "ResetTable": replay_pb2.ResetTableRequest(table=name),
                "Insert": replay_pb2.InsertRequest(table=name, insertion=insertion, rows=bytes(8)),
                "Read": replay_pb2.ReadRequest(table=name),
            }
            for method, request in requests.items():
                with refused("TABLE_NOT_FOUND"):
                    call_raw(channel, method, request.SerializeToString())
    assert sorted(tmp_path.rglob("*")) == before


# Listening.


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("no.such.name.invalid", False),
    ],
)
def test_which_addresses_are_reached_from_this_machine_alone(host: str, alone: bool) -> None:
    assert is_loopback(host) == alone


@pytest.mark.parametrize(
    ("protection", "warning"),
    [
        (Protection(tls=False, client_certificates=False, tokens=True), "tokens and rows travel in plain text"),
        (Protection(tls=True, client_certificates=True, tokens=False), ""),
        (Protection(tls=True, client_certificates=False, tokens=True), ""),
    ],
)
def test_protection_by_halves_is_warned_of(
    protection: Protection, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    check_exposure("0.0.0.0", protection, insecure=False)
    assert warning in caplog.text
    assert bool(caplog.text) == bool(warning)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS alone"])
def test_where_anybody_could_call_other_machines_are_kept_out(tls: bool, caplog: pytest.LogCaptureFixture) -> None:
    nothing = Protection(tls=tls, client_certificates=False, tokens=False)
    check_exposure("127.0.0.1", nothing, insecure=False)
    assert caplog.text == ""
    check_exposure("0.0.0.0", nothing, insecure=True)
    assert "anyone who reaches 0.0.0.0 can read and delete everything" in caplog.text
    with pytest.raises(ExposedError, match="anyone could read and delete everything") as refusal:
        check_exposure("0.0.0.0", nothing, insecure=False)
    assert ("TLS alone encrypts, but admits everyone" in str(refusal.value)) == tls


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_server_says_why_it_does_not_listen_beyond_this_machine(tmp_path: Path, host: str) -> None:
    ended = run_to_its_end("--host", host, "--memory-dir", str(tmp_path))
    assert ended.returncode == 2
    for part in (f"--host {host}", "--tls-cert", "--tokens", "--insecure"):
        assert part in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_server_listens_everywhere_if_it_is_told_to_or_protected(
    start_server: StartServer, tokens: Path, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "ca")
    certified = authority.certify("server")
    for flags in (["--insecure"], ["--tokens", str(tokens)], tls_flags(certified, authority.ca)):
        server = start_server("--host", "0.0.0.0", *flags)
        with socket.create_connection(("127.0.0.1", server.port), timeout=10):
            pass


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--tls-cert", "c.pem"], "tls_cert and tls_key together"),
        (["--tls-key", "k.pem"], "tls_cert and tls_key together"),
        (["--tls-client-ca", "ca.pem"], "with tls_client_ca"),
        (["--tls-cert", "absent.pem", "--tls-key", "absent.key"], "absent.pem"),
        (["--tokens", "absent.toml"], "tokens that this user can read, got: No such file or directory; give the path"),
        (["--tokens", "/"], "/: expected a TOML file of tokens that this user can read, got: Is a directory; give the"),
        (["--group", "no-such-group"], "expected a group of this machine, got 'no-such-group'"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, flags: list[str], complaint: str) -> None:
    ended = run_to_its_end(*flags, "--memory-dir", str(tmp_path))
    assert ended.returncode in (1, 2)
    assert complaint in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_settings_can_be_variables(start_server: StartServer, tokens: Path) -> None:
    server = start_server(environment={"REPLAY_SERVER_TOKENS": str(tokens), "REPLAY_SERVER_HEALTH": "false"})
    with ReplayClient(server.address) as client, pytest.raises(UnauthenticatedError):
        client.tables()


# Files.


def modes_below(folder: Path) -> dict[str, int]:
    """Permission bits of a folder and everything in it, except the lock."""
    paths = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o7777 for path in paths if path.name != "lock"}


def make_a_table(server: ServerProcess) -> None:
    with ReplayClient(server.address) as client:
        client.create_table(NAME, columns=COLUMNS, capacity=10).insert({"x": [1]})


@pytest.mark.parametrize("place", ["--data-dir", "--memory-dir"])
def test_files_belong_to_their_user_alone(start_server: StartServer, tmp_path: Path, place: str) -> None:
    folder = tmp_path / "place"
    folder.mkdir(mode=0o700)
    old = os.umask(0)
    try:
        server = start_server(place, str(folder))
    finally:
        os.umask(old)
    make_a_table(server)
    modes = modes_below(folder)
    assert len(modes) > 5
    assert {path: mode for path, mode in modes.items() if mode & 0o7077} == {}


def another_group() -> tuple[str, int]:
    """Name and id of a group to which we may assign files; if possible, not our primary group."""
    mine, others = os.getgid(), set(os.getgroups())
    known = [each for each in grp.getgrall() if os.getuid() == 0 or each.gr_gid in {mine, *others}]
    found = min(known, key=lambda each: each.gr_gid == mine)
    return found.gr_name, found.gr_gid


def test_a_group_may_read_the_files_until_it_may_not(start_server: StartServer, tmp_path: Path) -> None:
    name, group = another_group()
    data = tmp_path / "data"
    server = start_server("--data-dir", str(data))
    make_a_table(server)
    server.terminate()
    server = start_server("--data-dir", str(data), "--group", name)
    with ReplayClient(server.address) as client:
        client.create_table(f"{NAME}-2", columns=COLUMNS, capacity=10)
    for path in [data, *data.rglob("*")]:
        mode = path.stat().st_mode & 0o777
        expected = 0o750 if path.is_dir() else SHARED_MODES.get(path.name, 0o640)
        assert mode == expected, path
        assert path.stat().st_gid == group or path.name == "lock"
    server.terminate()
    start_server("--data-dir", str(data))
    assert (data / "tables").stat().st_mode & 0o777 == 0o700


def test_health_can_be_left_out(start_server: StartServer) -> None:
    server = start_server("--no-health")
    with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError) as error:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert code_of(error.value) is grpc.StatusCode.UNIMPLEMENTED
    assert server.terminate() == 0


def test_health_needs_no_token(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.address) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
