"""The command `replay` in terminals that lack most of Unicode."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import numpy as np
import pytest
from replay_client import Column, ReplayClient, Table
from replay_client.cli.app import run
from replay_proto.command_line import use_any_terminal

from tests.support.server_process import ServerProcess


@pytest.fixture
def table(server: ServerProcess) -> Table:
    """A table with rows of many priorities."""
    with ReplayClient(server.address) as client:
        made = client.create_table("cli-plain", columns={"x": Column("float32", 3)}, capacity=1000, if_exists="reset")
        made.insert({"x": np.zeros((300, 3))}, priorities=np.geomspace(0.01, 10, 300))
        made.sample(64, beta=0.4)
    return made


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Callable[[], str]]:
    """Makes standard output one of an encoding; returns a function that reads what was printed."""

    def replace(encoding: str) -> Callable[[], str]:
        printed = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding))
        monkeypatch.setenv("COLUMNS", "100")
        return lambda: printed.getvalue().decode(encoding)

    return replace


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("command", [["inspect", "cli-plain"], ["stats", "cli-plain"], ["stats"], ["tables"]])
def test_every_view_can_be_printed(
    server: ServerProcess, table: Table, terminal: Callable[[str], Callable[[], str]], command: list[str], encoding: str
) -> None:
    printed = terminal(encoding)
    assert run([*command, "--server", server.address]) == 0
    assert "cli-plain" in printed()
    assert "?" not in printed(), "a character has a plain one in its place"


def test_letters_lose_their_accents_and_lines_keep_their_width(terminal: Callable[[str], Callable[[], str]]) -> None:
    printed = terminal("ascii")
    use_any_terminal()
    print("é│█▁⣿╭漢…")
    sys.stdout.flush()
    assert printed() == "e|#_*+?~\n"
