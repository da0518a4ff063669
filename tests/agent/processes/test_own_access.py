"""Other users of the machine can reach the loopback port of a run's own server, but are refused."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from replay_agent.processes.own_access import actor_environment, own_access
from replay_client import ReplayClient, UnauthenticatedError

from experiments.common.server_access import replay_server
from tests.agent.processes.test_processes import lines_of
from tests.agent.short_runs import PATIENCE_S, SHORT_RUN, flags_of
from tests.support.deadlines import wait_until

STRANGE = "f" * 64


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_the_token_is_for_the_eyes_of_its_owner_and_gone_in_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "access"
    folder.mkdir(mode=0o777)
    (folder / "token").write_text("left by a start that was killed")
    with own_access(folder) as first:
        assert permissions(folder) == 0o700
        assert [permissions(path) for path in (first.token_file, first.tokens_file)] == [0o600, 0o600]
        assert first.token_file.read_text().strip() == first.token
        assert first.token not in first.tokens_file.read_text()
        assert first.token not in repr(first)
    assert list(folder.iterdir()) == []
    with own_access(folder) as second:
        assert second.token != first.token


def test_a_folder_that_leads_elsewhere_gets_no_token(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "access").symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(PermissionError, match="expected a directory of the user who runs this"),
        own_access(tmp_path / "access"),
    ):
        pass
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_an_experiments_own_server_serves_nobody_else(tmp_path: Path) -> None:
    with replay_server(None, tmp_path) as server:
        with server.connect() as client:
            assert client.tables() == []
        for token in (None, STRANGE):
            with ReplayClient(server.address, token=token) as stranger, pytest.raises(UnauthenticatedError):
                stranger.tables()


def processes_of(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


@pytest.mark.slow
def test_the_server_of_a_run_serves_nobody_but_its_owner(tmp_path: Path) -> None:
    values = {**SHORT_RUN, "steps": 10_000_000, "runs_dir": tmp_path, "name": "run", "actors": 1}
    run = tmp_path / "run"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REPLAY_")}
    with ExitStack() as ends:
        process = ends.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "replay_agent.commands.replay_train", *flags_of(values)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
        )
        ends.callback(process.kill)  # if a check fails, so that nothing waits for its end
        lines, said = lines_of(process), ""
        deadline = time.monotonic() + PATIENCE_S
        while "to inspect the replay server: " not in said and time.monotonic() < deadline:
            said += lines.get(timeout=PATIENCE_S)
        found = re.search(r"replay server at (\S+), run", said)
        command = re.search(r"to inspect the replay server: (.*)", said)
        assert found, said
        assert command, said
        token = (run / "access" / "token").read_text().strip()
        wait_until(lambda: (run / "logs" / "actor-0.log").exists(), "an actor is started", PATIENCE_S)
        wait_until(lambda: "acts for run run" in (run / "logs" / "actor-0.log").read_text(), "it joined", PATIENCE_S)

        for strange in (None, STRANGE):
            with ReplayClient(found[1], token=strange) as client, pytest.raises(UnauthenticatedError):
                client.drop_table("run")
        # The command that the log shows to the user.
        shown = subprocess.run(
            command[1].replace("replay stats", f"{Path(sys.executable).parent}/replay stats"),
            shell=True,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert shown.returncode == 0, shown.stderr
        assert "run" in shown.stdout
        assert not [each for each in processes_of(process.pid) if token in " ".join(each.cmdline())]
        process.terminate()
        process.wait(PATIENCE_S)
        while line := lines.get(timeout=PATIENCE_S):
            said += line
    assert token not in said
    assert not [path for path in run.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]


def test_actors_of_a_run_get_the_token_of_its_own_server_and_no_tls(tmp_path: Path) -> None:
    mine = {"REPLAY_TOKEN": "mine", "REPLAY_TLS_CA": "/absent", "OTHER": "kept"}
    assert actor_environment(None, mine) == mine
    with own_access(tmp_path / "access") as own:
        assert actor_environment(own, mine) == {"REPLAY_TOKEN": own.token, "OTHER": "kept"}
