"""Servers that a program starts for itself."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import subprocess
import sys
from importlib import util
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import psutil
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from replay_client import (
    Column,
    LocalServer,
    LocalServerError,
    MissingExtraError,
    ReplayClient,
    ReplayError,
    UnauthenticatedError,
    _extras,
    local_server,
)
from replay_client._transport import long_waits
from replay_proto.child_process import start_module

from tests.packaging.project import metadata
from tests.support.deadlines import PATIENCE_S, wait_until

COLUMNS = {"number": Column("int64")}


def has_ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def memory_of(pid: int) -> list[Path]:
    """Folders of tables in memory that a process has locked."""
    return [Path(file.path).parent for file in psutil.Process(pid).open_files() if file.path.endswith("/lock")]


def test_a_program_starts_and_ends_its_own_server() -> None:
    with LocalServer() as server:
        with server.client(timeout_s=7.0) as client:
            table = client.create_table("t", columns=COLUMNS, capacity=10)
            table.insert({"number": [1, 2, 3]})
            with table.sampler(4, beta=0.4) as sampler:
                next(sampler)
            assert table.stats().sampled_same_host > 0
        folders = memory_of(server.pid)
        assert folders
        assert server.token not in repr(server)
        assert server.token not in " ".join(psutil.Process(server.pid).cmdline())
        assert server.is_running
    assert has_ended(server.pid)
    assert [folder for folder in folders if folder.exists()] == []
    server.close()


def test_it_serves_only_those_who_have_its_token() -> None:
    with LocalServer() as server, LocalServer() as another:
        for token in (None, another.token):
            with ReplayClient(server.address, token=token) as stranger, pytest.raises(UnauthenticatedError):
                stranger.tables()


def test_a_data_directory_keeps_the_tables(tmp_path: Path) -> None:
    for count in (2, 4):
        with LocalServer(tmp_path / "data", log_path=tmp_path / "log", max_tables=1, reflection=False) as server:
            table = server.client().create_table("t", columns=COLUMNS, capacity=10, if_exists="open")
            table.insert({"number": [1, 2]})
            assert len(table) == count
            with pytest.raises(ReplayError, match="max_tables"):
                server.client().create_table("another", columns=COLUMNS, capacity=10)
    assert (tmp_path / "log").read_text().count("stopped") == 2


def test_in_one_line_it_runs_as_long_as_something_of_the_client_is_used() -> None:
    client = LocalServer().client()
    server: Any
    (server,) = client._session.connection.kept_alive
    pid = server.pid
    table = client.create_table("t", columns=COLUMNS, capacity=10)
    table.insert({"number": [1]})
    sampler = table.sampler(1, beta=0.4)
    del server, client, table
    gc.collect()
    assert next(sampler)["number"].tolist() == [1]
    sampler.close()
    del sampler
    gc.collect()
    assert has_ended(pid)


def test_a_forked_child_that_exits_leaves_it_running() -> None:
    with LocalServer() as server:
        child = os.fork()
        if child == 0:
            try:
                server.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert server.client().tables() == []


PARENT = """
import os, sys, time
from replay_client import LocalServer
server = LocalServer()
child = os.fork()
if child == 0:
    time.sleep(600)
print(server.pid, child, flush=True)
time.sleep(600)
"""


def test_a_killed_program_leaves_nothing_behind_even_if_its_forked_children_live_on(tmp_path: Path) -> None:
    """A forked child, such as an environment of an AsyncVectorEnv, keeps the pipe to the server open."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        pid, child = map(int, parent.stdout.readline().split())
        try:
            folders = memory_of(pid)
            assert folders
            parent.kill()
            parent.wait(PATIENCE_S)
            wait_until(lambda: has_ended(pid), "the server has ended")
        finally:
            os.kill(child, signal.SIGKILL)
    assert [folder for folder in folders if folder.exists()] == []
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_exits_in_order_stops_it(tmp_path: Path) -> None:
    program = (
        "import sys; from replay_client import LocalServer; "
        "server = LocalServer(); print(server.pid); print('started', file=sys.stderr)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stderr.endswith("started\n"), "on a busy machine, the start may take long, and says so"
    assert has_ended(int(shown.stdout))


def test_modules_in_the_current_directory_are_not_taken_for_the_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_server, "start_module", start_module)
    (tmp_path / "uvloop.py").write_text("raise ImportError('a module of the user')")
    monkeypatch.chdir(tmp_path)
    with LocalServer() as server:
        assert server.client().tables() == []


def test_one_that_does_not_start_is_reported_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LocalServerError, match=r"(?s)expected 'replay-server listening on '.*--drain-s.*nonsense"):
        LocalServer(drain_s="nonsense")
    monkeypatch.setenv("REPLAY_SERVER_DRAIN_S", "nonsense")
    LocalServer().close()


def test_a_missing_extra_is_said_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_extras, "find_spec", lambda name: None if name == "numba" else util.find_spec(name))
    with pytest.raises(MissingExtraError, match=r"^numba not installed; .*pip install '\.\[server\]'$") as error:
        LocalServer()
    assert isinstance(error.value, ImportError)


def test_the_modules_of_the_extra_are_known() -> None:
    distributions = packages_distributions()
    project = metadata()["project"]
    extra, base = (
        {canonicalize_name(Requirement(line).name) for line in lines}
        for lines in (project["optional-dependencies"]["server"], project["dependencies"])
    )
    assert {canonicalize_name(distributions[module][0]) for module in local_server.NEEDED} == extra - base


def test_how_far_a_first_start_is_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(_: str, arguments: list[str], *rest: Any, **options: Any) -> subprocess.Popen[str]:
        options["environment"].pop("PYTHONSAFEPATH")
        return start_module("tests.client.local_server.compiling_server", arguments, *rest, **options)

    monkeypatch.setattr(local_server, "start_module", start)
    path = tmp_path / "server.log"
    path.write_text("compiling kernels: 1 of 2 in an earlier start\n")
    with caplog.at_level(logging.INFO, logger="replay_client"):
        LocalServer(log_path=path).close()
    said = [record.getMessage() for record in caplog.records]
    patterns = (
        r"compiling \d+ kernels \(.*",
        r"compiling kernels: \d+ of \d+ after \d+ s",
        r"kernels compiled in \d+ s",
    )
    assert len(said) == len(patterns)
    for pattern, line in zip(patterns, said, strict=True):
        assert re.fullmatch(f"replay server: {pattern}", line)


def test_a_start_that_takes_long_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(long_waits, "WARN_AFTER_S", 0.0)
    monkeypatch.setattr(local_server, "START_TIMEOUT_S", 0.5)

    def start(_: str, __: list[str], log_path: Path, **options: Any) -> subprocess.Popen[str]:
        log_path.write_text("one of two tables\n")
        return subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)

    monkeypatch.setattr(local_server, "start_module", start)
    with pytest.raises(LocalServerError, match="not ready"):
        LocalServer()
    (said,) = [record.getMessage() for record in caplog.records if record.name == long_waits.__name__]
    expected = "the start of a local server waits: waited 0 of 0.5 s; the last line of its log: one of two tables"
    assert said == expected


def test_a_start_that_says_how_far_it_is_is_no_silent_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(long_waits, "WARN_AFTER_S", 1.0)
    monkeypatch.setattr(local_server, "_LOOK_S", 0.01)
    script = """
for number in $(seq 50); do
    echo "compiling kernels: $number of 50" >>"$0"
    sleep 0.03
done
echo "replay-server listening on 127.0.0.1:1"
"""

    def start(_: str, __: list[str], log_path: Path, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["sh", "-c", script, log_path], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )

    monkeypatch.setattr(local_server, "start_module", start)
    path = tmp_path / "server.log"
    path.touch()
    LocalServer(log_path=path).close()
    assert len([record for record in caplog.records if record.name == local_server.__name__]) == 50
    assert not [record for record in caplog.records if record.name == long_waits.__name__]
