"""Signals ask a run to stop, and nohup's choice is respected."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from replay_agent.processes.signals import StopRequest
from replay_proto.starting import EXIT_CTRL_C


@pytest.fixture(autouse=True)
def hangup() -> Iterator[None]:
    """Nohup may have begun the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_asks_for_a_stop(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopRequest() as stop:
        signal.raise_signal(number)
        assert stop.is_set()
        assert stop.signal is number
    assert signal.getsignal(number) == before


def test_a_hangup_that_is_ignored_remains_so() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert not stop.is_set()


@pytest.mark.parametrize(
    ("command", "library"),
    [("train", "cyclopts"), ("train", "torch"), ("actor", "cyclopts"), ("eval", "cyclopts"), ("play", "cyclopts")],
)
def test_ctrl_c_while_a_library_is_imported_ends_a_command_without_a_word(
    tmp_path: Path, command: str, library: str
) -> None:
    (tmp_path / f"{library}.py").write_text("import signal, time; signal.raise_signal(signal.SIGINT); time.sleep(60)")
    ended = subprocess.run(
        [sys.executable, "-m", f"replay_agent.commands.replay_{command}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (EXIT_CTRL_C, "", "")
