"""Limits on checkpoints: requests beyond them are refused before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.support.caller import Caller
from tests.support.deadlines import wait_until
from tests.support.refusals import refused
from tests.support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]
Call = Callable[[ServerProcess], Caller]


def below(folder: Path) -> set[str]:
    """All paths in a folder except the lock."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != "lock"}


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_all_checkpoints_together_take_so_many_bytes(start_server: StartServer, call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    flags = ("--checkpoint-dir", str(folder), "--data-dir", str(tmp_path / "data"))
    server = start_server(*flags)
    caller = call(server)
    caller.create("table", capacity=2000).insert(np.arange(64))
    of_files = caller.checkpoint().bytes
    server.terminate()
    most = size_of(folder) + of_files
    server = start_server(*flags, "--max-checkpoint-bytes", str(most - 1))
    caller, before = call(server), below(folder)
    with refused("TOO_LARGE", bound="bytes of all checkpoints", limit=most - 1, got=most) as refusal:
        caller.checkpoint()
    assert refusal.metadata["setting"] == "max_checkpoint_bytes of the server"
    assert below(folder) == before
    server.terminate()
    call(start_server(*flags, "--max-checkpoint-bytes", str(most))).checkpoint()


def test_there_are_so_many_series(start_server: StartServer, call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    caller = call(start_server("--checkpoint-dir", str(folder), "--max-checkpoint-series", "2"))
    caller.create()
    caller.checkpoint(series="one")
    caller.checkpoint(series="two-000007")
    before = below(folder)
    with refused("TOO_LARGE", bound="series of checkpoints", limit=2, got=3) as refusal:
        caller.checkpoint(series="three")
    assert refusal.metadata["setting"] == "max_checkpoint_series of the server"
    assert below(folder) == before
    caller.checkpoint(series="one")


def test_the_servers_own_checkpoints_are_written_however_many_callers_had_written(
    start_server: StartServer, call: Call, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    flags = ("--checkpoint-dir", str(folder), "--data-dir", str(tmp_path / "data"))
    server = start_server(*flags)
    call(server).create()
    call(server).checkpoint(series="one")
    server.terminate()
    bounds = ("--max-checkpoint-series", "1", "--max-checkpoint-bytes", "1")
    start_server(*flags, *bounds, "--checkpoint-every", "0.05")
    wait_until(lambda: any(path.name.startswith("periodic-") for path in folder.iterdir()), "one is written")
