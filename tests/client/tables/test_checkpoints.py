"""Checkpoints through the client library and the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from replay_client import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    CheckpointsOffError,
    InvalidArgumentError,
    ReplayClient,
    Table,
    TableNotFoundError,
)

from tests.client.conftest import COLUMNS
from tests.client.numbered import rows
from tests.client.test_cli import run
from tests.support.server_process import ServerProcess

Connect = Callable[..., ReplayClient]


@pytest.fixture
def keeping(start_server: Callable[..., ServerProcess], tmp_path: Path) -> ServerProcess:
    """A server that writes checkpoints."""
    return start_server("--checkpoint-dir", str(tmp_path / "checkpoints"))


@pytest.fixture
def table(keeping: ServerProcess, connect: Connect) -> Table:
    """A table with rows on that server."""
    made = connect(keeping).create_table("t", columns=COLUMNS, capacity=100)
    made.insert(rows(range(120)))
    return made


def test_a_client_has_checkpoints_written_listed_and_verified(
    keeping: ServerProcess, connect: Connect, table: Table
) -> None:
    client = connect(keeping)
    made = client.checkpoint(["t"], series="nightly", keep=2)
    assert made.name == "nightly-000001"
    assert Path(made.directory).is_dir()
    assert (made.tables["t"].size, made.tables["t"].inserted, made.tables["t"].uid) == (100, 120, table.uid)
    assert client.checkpoints() == [made]
    assert client.verify_checkpoint(made.name) == made
    with pytest.raises(CheckpointNotFoundError):
        client.verify_checkpoint("nightly-000002")
    with pytest.raises(TableNotFoundError):
        client.checkpoint(["nobody"])
    with pytest.raises(InvalidArgumentError, match="series"):
        client.checkpoint(series="../out")
    with pytest.raises(InvalidArgumentError, match="keep"):
        client.checkpoint(keep=0)
    (Path(made.directory) / "t" / "priorities.bin").write_bytes(b"")
    with pytest.raises(CheckpointDamagedError) as damaged:
        client.verify_checkpoint(made.name)
    assert damaged.value.metadata == {"checkpoint": made.name, "file": "t/priorities.bin"}


def test_a_damaged_checkpoint_is_listed_as_such(keeping: ServerProcess, connect: Connect, table: Table) -> None:
    client = connect(keeping)
    broken, whole = client.checkpoint(series="nightly"), client.checkpoint()
    (manifest,) = Path(broken.directory).glob("*.json")
    manifest.write_bytes(b"x")
    found = client.checkpoints()
    assert [(each.name, each.directory) for each in found] == [(each.name, each.directory) for each in (broken, whole)]
    assert str(manifest) in found[0].damage
    assert (found[0].taken_s, found[0].bytes, found[0].tables) == (0.0, 0, {})
    assert found[1] == whole
    lines = run("checkpoint", "list", "--server", keeping.address).stdout.splitlines()
    assert any("damaged" in line for line in lines)
    assert not any("1970" in line for line in lines)


def test_a_server_without_a_directory_says_so(client: ReplayClient) -> None:
    with pytest.raises(CheckpointsOffError, match="--checkpoint-dir"):
        client.checkpoint()


def test_the_command_writes_lists_and_verifies(keeping: ServerProcess, table: Table) -> None:
    server = ("--server", keeping.address)
    assert "has no checkpoints" in run("checkpoint", "list", *server).stdout
    made = run("checkpoint", "create", "--series", "mine", "--table", "t", *server)
    assert made.returncode == 0, made.stderr
    assert "checkpoint mine-000001 written: 1 tables, 100 rows" in made.stdout
    assert "mine-000001" in run("checkpoint", "list", *server).stdout
    (listed,) = json.loads(run("checkpoint", "list", "--json", *server).stdout)
    assert listed["tables"]["t"]["uid"] == table.uid.hex()
    assert "mine-000001 whole" in run("checkpoint", "verify", "mine-000001", *server).stdout
    path = Path(listed["directory"]) / "t" / "column-000.bin"
    path.write_bytes(path.read_bytes()[1:] + b"?")
    damaged = run("checkpoint", "verify", "mine-000001", *server)
    assert damaged.returncode == 1
    assert str(path) in damaged.stderr
    assert run("checkpoint", "verify", "nobody", *server).returncode == 1
