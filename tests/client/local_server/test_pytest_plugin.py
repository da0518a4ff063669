"""The pytest plugin, in a run of pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.packaging.project import metadata

TESTS = """
import sys
from replay_pytest import replay_server as fixture

LOADED = {name for name in sys.modules if name.startswith("replay_client")}

def test_the_plugin_loads_nothing():
    assert LOADED == set()

def test_a_client(replay_server):
    client = replay_server.client()
    assert client.tables() == []
    open("pid", "a").write(f"{replay_server.pid}\\n")

def test_the_server_is_shared(replay_server):
    open("pid", "a").write(f"{replay_server.pid}\\n")
"""


def test_tests_get_a_server(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "replay_pytest", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    first, second = (tmp_path / "pid").read_text().split()
    assert first == second


def test_pytest_finds_the_plugin_by_the_same_name() -> None:
    """Otherwise, ``-p replay_pytest`` would register it twice."""
    assert metadata()["project"]["entry-points"]["pytest11"] == {"replay_pytest": "replay_pytest"}
