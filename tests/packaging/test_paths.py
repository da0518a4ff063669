"""The files that docs/project/architecture.md names, and the paths of calls through them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from replay_client import Column, ReplayClient, Sampler
from replay_client._learning.learning import Learning
from replay_client._rows.block import RowBlock
from replay_client._rows.mapped_rows import MappedRows
from replay_client._transport.frame_stream import FrameStream
from replay_client._transport.pending import PendingRequests
from replay_client._writing.outbox import Outbox

from tests.packaging.project import PACKAGES, ROOT
from tests.support.call_paths import CallPaths
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

MOST_FILES = 8
_ROWS = 3000
"""More than a block."""
_TEXT = (ROOT / "docs" / "project" / "architecture.md").read_text("utf-8")
_PAGES = "".join(page.read_text("utf-8") for page in sorted((ROOT / "docs" / "project").glob("*.md")))
_FILES = re.compile(r"`([\w/.]+\.py)`")
_OF_THE_PROCESS = ("__main__.py", "process/main.py")
"""On each stack of a server: they run the event loop."""
_PULLS = "_transport/frame_stream.py"
"""Begins the stack of a writer's sending thread, which asks for what to send; so that stack goes the other way."""
_CLIENT = (
    (RowBlock, "add"),
    (Outbox, "hand_over"),
    (Learning, "update"),
    (PendingRequests, "add"),
    (FrameStream, "send"),
    (FrameStream, "receive"),
    (MappedRows, "gather"),
)
"""Where the client keeps, sends or receives the values of an insert, a draw or an update."""


def listed(call: str) -> list[list[str]]:
    """Files of the client and the server in the row of a call, in their order."""
    row = re.search(rf"^\| {call} \|(.*)\|(.*)\|$", _TEXT, re.MULTILINE)
    assert row, f"docs/project/architecture.md has no row for {call}"
    return [_FILES.findall(cell) for cell in row.groups()]


def check(call: str, files: list[str], stacks: Iterable[tuple[str, ...]]) -> None:
    """Fail unless these files, in this order, are all that the stacks pass through, from call to call."""
    inner = [[file for file in stack if file not in _OF_THE_PROCESS] for stack in stacks]
    assert set(files) == {file for stack in inner for file in stack}, call
    for stack in (stack for stack in inner if stack[0] != _PULLS):
        assert stack == sorted(stack, key=files.index), f"{call}: {stack} is not in the order of the list"
    assert len(files) <= MOST_FILES


def test_each_file_that_is_named_exists() -> None:
    every = [path for package in PACKAGES.values() for path in package.rglob("*.py")] + [*ROOT.glob("*/**/*.py")]
    known = {f"/{path.relative_to(ROOT)}" for path in every if ".venv" not in path.parts}
    absent = [name for name in set(_FILES.findall(_PAGES)) if not any(path.endswith(f"/{name}") for path in known)]
    assert not absent


def test_an_insert_a_draw_and_an_update_pass_through_the_files_that_are_listed(
    start_server: Callable[..., ServerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacks = tmp_path / "stacks.json"
    code = f"from tests.support.call_paths import watch_server\nwatch_server({str(stacks)!r})\n"
    (tmp_path / "sitecustomize.py").write_text(code, "utf-8")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    server = start_server("--data-dir", str(tmp_path / "data"), environment={"PYTHONPATH": paths})
    client_paths = CallPaths(PACKAGES["replay_client"])
    with ReplayClient(server.address) as client:
        table = client.create_table("t", columns={"x": Column("float32")}, capacity=10_000)
        with table.writer() as writer:
            writer.append(x=0)  # opens the stream
            writer.flush()
            for owner, name in _CLIENT:
                monkeypatch.setattr(owner, name, client_paths.watched(owner, name))
            for number in range(_ROWS):
                writer.append(x=number)
            wait_until(lambda: table.describe().inserted == _ROWS + 1, "the rows are inserted")
            seen = {"insert": client_paths.take()}
        sampler = table.sampler(32, prefetch=1)
        assert isinstance(sampler, Sampler)
        next(sampler)  # opens the stream
        client_paths.take()
        batch = next(sampler)
        seen["draw"] = client_paths.take()
        sampler.update_priorities(batch, np.ones(32))
        sampler.flush()
        seen["update"] = client_paths.take()
        sampler.close()
    server.terminate()
    on_server = [tuple(stack) for stack in json.loads(stacks.read_text("utf-8"))]
    inserts = [stack for stack in on_server if "rpc/handlers/inserts.py" in stack]
    learning = [stack for stack in on_server if "rpc/handlers/sampling.py" in stack]
    draws = [stack for stack in learning if "table/priority_draws.py" in stack]
    updates = [stack for stack in learning if stack not in draws]
    for call, its_server in (("insert", inserts), ("draw", draws), ("update", updates)):
        for_client, for_server = listed(call)
        check(call, for_client, seen[call])
        check(call, for_server, its_server)
