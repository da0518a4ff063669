"""``replay export`` and ``replay import``, in this process, because Minari takes a while to load."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from replay_client import Column, Next, ReplayClient, Table, Transitions
from replay_client.cli.app import run

from tests.client import numbered
from tests.support.server_process import ServerProcess

NewTable = Callable[..., Table]


pytest.importorskip("pyarrow")


@dataclass
class Done:
    """What a command returned and printed."""

    status: int
    stdout: str
    stderr: str


Replay = Callable[..., Done]


@pytest.fixture
def replay(server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Replay:
    """Runs a subcommand of ``replay`` on the shared server."""
    monkeypatch.setenv("REPLAY_SERVER", server.address)
    monkeypatch.setenv("MINARI_DATASETS_PATH", "")  # the command sets it

    def command(*arguments: str | Path) -> Done:
        try:
            status = run([str(argument) for argument in arguments])
        except SystemExit as end:
            status = int(end.code or 0)
        return Done(status, *capsys.readouterr())

    return command


@pytest.fixture
def copy(client: ReplayClient, table: Table) -> Iterator[str]:
    """The name of a table that is dropped at the end."""
    name = f"{table.name}-copy"
    yield name
    if name in client:
        client.drop_table(name)


def test_a_parquet_file_there_and_back(
    replay: Replay, client: ReplayClient, table: Table, copy: str, tmp_path: Path
) -> None:
    table.insert(numbered.rows(range(50)), priorities=np.arange(50))
    directory, path = tmp_path / "new" / "folder", tmp_path / "new" / "folder" / f"{table.name}.parquet"
    done = replay("export", table.name, directory)
    assert done.status == 0, done.stderr
    assert done.stdout.startswith(f"wrote 50 rows of table {table.name} to {path}, ")
    done = replay("import", path, copy, "--keys", "--capacity", "60")
    assert (done.stdout, done.status) == (f"inserted 50 rows into table {copy}\n", 0), done.stderr
    assert client[copy].capacity == 60
    assert client[copy].read(range(50)).priorities.tolist() == list(range(50))
    done = replay("import", path, copy, "--append", "--no-priorities", "--json")
    assert json.loads(done.stdout) == {"table": copy, "rows": 50}
    assert client[copy].describe().inserted == 100
    done = replay("export", table.name, directory, "--json", "--order", "key")
    assert json.loads(done.stdout) == {"rows": 50, "inserted": 50, "overtaken": 0}


def test_a_minari_dataset_there_and_back(
    replay: Replay,
    client: ReplayClient,
    new_table: NewTable,
    copy: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    pytest.importorskip("minari")
    monkeypatch.chdir(tmp_path)  # Minari itself fails with a relative path
    columns = {"obs/a": Column("float32", 2), "action": Column("int64"), "reward": Column("float32")}
    table = new_table(columns={**columns, "next_obs/a": Next("obs/a")}, steps=Transitions())
    with table.writer() as writer:
        for _ in range(3):
            writer.append(obs={"a": np.zeros(2)}, action=1, reward=1.0)
        writer.end_episode(obs={"a": np.ones(2)}, terminated=True)
        writer.append(obs={"a": np.zeros(2)}, action=1, reward=1.0)
    done = replay("export", table.name, "folder", "--format", "minari")
    assert done.stdout.splitlines() == [
        f"wrote 1 episodes of table {table.name}, with 3 steps, to folder/{table.name}-v0",
        "  left out: 1 episodes have no end",
    ], done.stderr
    directory = f"folder/{table.name}-v0"
    done = replay("import", directory, copy, "--n-step", "2")
    assert (done.stdout, done.status) == (f"inserted 4 rows into table {copy}\n", 0), done.stderr
    loaded = client[copy]
    assert loaded.steps is not None
    assert loaded.steps.item == Transitions(2)
    assert loaded.capacity == 4
    assert set(loaded.sample(3, beta=0.4)) == {"obs/a", "action", "reward", "next_obs/a", "n_return", "discount"}
    done = replay("import", directory, copy, "--append", "--json")
    assert json.loads(done.stdout) == {"table": copy, "rows": 4}


def test_an_export_that_is_not_possible_creates_no_directory(
    replay: Replay, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.mkdir()
    for directory in (new / "folder", old / "folder", old):
        assert replay("export", table.name, directory, "--order", "episode").status == 1
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = replay("export", table.name, new / "folder")
    assert (done.status, "pip install '.[arrow]'" in done.stderr) == (1, True)
    assert list(tmp_path.rglob("*")) == [old]


def test_what_is_wrong_is_said_in_one_line(replay: Replay, table: Table, tmp_path: Path) -> None:
    pytest.importorskip("minari", reason="minari is not installed")
    (tmp_path / "text").write_text("no rows")
    for arguments, said in [
        (("export", table.name, "text"), "directory: expected a directory, new or not, got"),
        (("import", "nothing"), "No such file"),
        (("import", "text", "--append"), "table: expected the name of a table with --append"),
        (
            ("import", "text", table.name, "--append", "--capacity", "3"),
            "capacity: expected no such option with --append",
        ),
        (("import", "text", "--gamma", "0.9"), "gamma: expected no such option with a Parquet file, got 0.9"),
        (("import", ".", "--keys"), "keys: expected no such option with a Minari dataset, got True"),
        (("export", table.name, ".", "--env", "E"), "env: expected no such option with --format parquet, got E"),
        (("import", "."), "source: expected a Parquet file, or the directory of a Minari dataset"),
    ]:
        command, *values = arguments
        paths = [str(tmp_path / each) if each in (".", "text", "nothing") else each for each in values]
        done = replay(command, *paths)
        assert done.status == 1
        assert said in done.stderr, done.stderr
        assert done.stderr.startswith("replay: ")
        assert len(done.stderr.splitlines()) == 1
