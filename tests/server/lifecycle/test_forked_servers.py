"""Forked test servers behave like servers started by the command."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.server_process import ServerProcess, run_to_its_end
from tests.support.warm_program import ForkedProcess

StartServer = Callable[..., ServerProcess]


def taken_over(server: ServerProcess) -> dict[str, str]:
    """The inherited state of a process, and the state that it derived from it."""
    folder = Path(f"/proc/{server.pid}")
    lines = (folder / "status").read_text().splitlines()
    fields = {name: value for name, _, value in (line.partition(":") for line in lines)}
    seen = {name: fields[name] for name in ("Umask", "SigBlk", "SigIgn", "SigCgt")}
    return {**seen, "limits": (folder / "limits").read_text(), "folder": os.readlink(folder / "cwd")}


def test_a_forked_server_has_what_a_started_one_has(start_server: StartServer) -> None:
    forked, started = start_server(), start_server(forked=False)
    assert isinstance(forked.process, ForkedProcess)
    assert not isinstance(started.process, ForkedProcess)
    assert taken_over(forked) == taken_over(started)


@pytest.mark.parametrize("forked", [True, False], ids=["forked", "started"])
def test_it_ends_with_the_status_of_its_signal(start_server: StartServer, forked: bool) -> None:
    server = start_server(forked=forked)
    assert server.process.poll() is None
    server.process.send_signal(signal.SIGINT)
    assert server.wait() == 0
    assert server.log().splitlines()[-1].endswith("stopped")
    server.restart()
    server.kill()
    assert server.process.poll() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("flags", "status"), [(["--port", "70000"], 2), (["--memory-dir", "/dev/null"], 1), (["--version"], 0)]
)
def test_it_says_the_same_when_it_does_not_serve(flags: list[str], status: int) -> None:
    forked, started = (run_to_its_end(*flags, forked=way) for way in (True, False))
    assert forked.returncode == started.returncode == status
    assert forked.stdout == started.stdout
    # The timestamp precedes the message.
    assert [line[23:] for line in forked.stderr.splitlines()] == [line[23:] for line in started.stderr.splitlines()]


def test_variables_of_a_server_are_read_and_with_others_it_is_started(start_server: StartServer) -> None:
    environment = {"REPLAY_SERVER_KEEPALIVE_S": "-1"}
    assert "--keepalive-s" in run_to_its_end(environment=environment).stderr
    for verbosity, is_forked in (("ERROR", False), ("NONE", True)):  # a server sets NONE itself
        started = start_server(environment={"GRPC_VERBOSITY": verbosity})
        assert isinstance(started.process, ForkedProcess) == is_forked
