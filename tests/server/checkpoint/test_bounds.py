"""Limits on checkpoints: requests beyond them are refused before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from replay_proto.v1 import replay_pb2

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


def test_a_name_is_checked_as_a_whole_with_its_number(start_server: StartServer, call: Call, tmp_path: Path) -> None:
    """A longer one would be neither listed nor counted."""
    folder = tmp_path / "checkpoints"
    caller = call(start_server("--checkpoint-dir", str(folder)))
    caller.create()
    longest = "s" * (128 - len("-000001"))
    before = below(folder)
    for number in (10**6, 10**15):
        with refused("INVALID_FIELD", field="series"):
            caller.stub.Checkpoint(replay_pb2.CheckpointRequest(series=longest, number=number))
    with refused("INVALID_FIELD", field="number"):
        caller.stub.Checkpoint(replay_pb2.CheckpointRequest(series="s", number=10**15 + 1))
    assert below(folder) == before
    caller.stub.Checkpoint(replay_pb2.CheckpointRequest(series=longest, number=999_999))
    assert caller.checkpoints() == [f"{longest}-999999"]
    caller.verify(f"{longest}-999999")
    with refused("INVALID_FIELD", field="series"):  # the next number has a digit more
        caller.checkpoint(series=longest)
    assert caller.checkpoints() == [f"{longest}-999999"]


def test_after_the_largest_number_a_series_has_no_more(start_server: StartServer, call: Call, tmp_path: Path) -> None:
    caller = call(start_server("--checkpoint-dir", str(tmp_path / "checkpoints")))
    caller.create()
    caller.stub.Checkpoint(replay_pb2.CheckpointRequest(series="s", number=10**15))
    with refused("INVALID_FIELD", field="number", got=10**15 + 1):
        caller.checkpoint(series="s")
    assert caller.checkpoints() == [f"s-{10**15}"]


@pytest.mark.parametrize("name", ["left-over", f"{'s' * 128}-{10**14}", ".removed-series-000001"])
def test_all_that_lies_on_disk_counts(start_server: StartServer, call: Call, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "checkpoints"
    caller = call(start_server("--checkpoint-dir", str(folder), "--max-checkpoint-bytes", "10000000"))
    caller.create(capacity=1)
    caller.checkpoint()
    (folder / name).mkdir()
    (folder / name / "rows.bin").write_bytes(bytes(10_000_000))
    with refused("TOO_LARGE", bound="bytes of all checkpoints"):
        caller.checkpoint()


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
