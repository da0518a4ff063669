"""The keeper of a shard's server, without Ray."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_agent.processes.own_access import OwnAccess, own_access
from replay_agent.ray import keeper as keeping
from replay_agent.ray.keeper import ShardKeeper
from replay_client import Column, ReplayClient

from tests.support.deadlines import wait_until
from tests.support.forked_modules import fork_module


@pytest.fixture
def access(tmp_path: Path) -> Iterator[OwnAccess]:
    with own_access(tmp_path / "access") as made:
        yield made


@pytest.fixture
def keep(tmp_path: Path, access: OwnAccess) -> Iterator[Callable[..., ShardKeeper]]:
    """Starts keepers of one shard, and stops them at the end."""
    with ExitStack() as stack:

        def start(config: Path | None = None) -> ShardKeeper:
            made = ShardKeeper(tmp_path / "shard-0", "127.0.0.1", access.tokens_file, config)
            stack.callback(made.stop)
            return made

        yield start


def ready(keeper: ShardKeeper) -> str:
    """Wait for the server, and return its address."""
    wait_until(lambda: keeper.report().address is not None, "the server is ready")
    return str(keeper.report().address)


def rows_at(address: str, access: OwnAccess) -> int:
    with ReplayClient(address, token=access.token) as client:
        return len(client["kept"]) if any(table.name == "kept" for table in client.tables()) else 0


def insert(address: str, access: OwnAccess) -> None:
    with ReplayClient(address, token=access.token) as client:
        client.create_table("kept", columns={"x": Column("float32")}, capacity=10).insert({"x": np.zeros(3, "f4")})


def test_a_killed_server_is_back_with_its_rows_on_the_same_port(
    keep: Callable[..., ShardKeeper], access: OwnAccess
) -> None:
    keeper = keep()
    address = ready(keeper)
    insert(address, access)
    pid = keeper.report().pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: keeper.report().pid not in (None, pid), "another server runs")
    assert ready(keeper) == address
    assert rows_at(address, access) == 3


def test_a_later_keeper_continues_the_shard_with_its_port_and_id(
    keep: Callable[..., ShardKeeper], access: OwnAccess
) -> None:
    keeper = keep()
    address = ready(keeper)
    insert(address, access)
    keeper.assign(7)
    keeper.stop()
    later = keep()
    assert ready(later) == address
    assert later.report().shard_id == 7
    assert rows_at(address, access) == 3


def test_a_shard_that_was_given_up_begins_empty_and_its_rows_remain(
    keep: Callable[..., ShardKeeper], access: OwnAccess, tmp_path: Path
) -> None:
    keeper = keep()
    insert(ready(keeper), access)
    keeper.assign(7)
    keeper.renew()
    assert rows_at(ready(keeper), access) == 0
    assert keeper.report().shard_id is None
    assert list((tmp_path / "shard-0" / "tables.lost-7").glob("**/kept"))


def test_a_keeper_that_was_killed_while_it_gave_a_shard_up_can_do_it_again(
    keep: Callable[..., ShardKeeper], access: OwnAccess, tmp_path: Path
) -> None:
    keeper = keep()
    insert(ready(keeper), access)
    keeper.assign(7)
    keeper.stop()
    folder = tmp_path / "shard-0"
    (folder / "tables").rename(folder / "tables.lost-7")  # the last thing that the killed keeper did
    later = keep()
    ready(later)
    later.renew()
    assert rows_at(ready(later), access) == 0
    assert later.report().shard_id is None
    assert list((folder / "tables.lost-7").glob("**/kept"))


def test_a_server_whose_port_is_taken_gets_another_one(
    keep: Callable[..., ShardKeeper], access: OwnAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "FIRST_BACKOFF_S", 0.01)
    keeper = keep()
    address = ready(keeper)
    keeper.stop()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", int(address.rpartition(":")[2])))
        other.listen()
        assert ready(keep()) != address


def test_a_server_that_cannot_start_is_reported_with_its_log(keep: Callable[..., ShardKeeper], tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text("no-such-setting = 1\n")
    keeper = keep(config)
    wait_until(lambda: keeper.report().failure is not None, "the failure is reported")
    assert "no-such-setting" in str(keeper.report().failure)


def test_a_token_that_a_node_does_not_see_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"tokens\.toml"):
        ShardKeeper(tmp_path / "shard-0", "127.0.0.1", tmp_path / "tokens.toml")


def test_a_server_is_kept_after_any_failure(
    keep: Callable[..., ShardKeeper], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = keeping._Notes.store
    failures = [OSError("no space for the notes"), BlockingIOError("no process")]

    def starts(*arguments: Any, **options: Any) -> Any:
        if len(failures) == 2:
            raise failures.pop()
        return fork_module(*arguments, **options)

    def stores(notes: keeping._Notes, **changed: int | None) -> None:
        if failures:
            raise failures.pop()
        store(notes, **changed)

    monkeypatch.setattr(keeping, "start_module", starts)
    monkeypatch.setattr(keeping._Notes, "store", stores)
    keeper = keep()
    wait_until(lambda: caplog.text.count("the replay server is started again") == 2, "both have failed")
    ready(keeper)
    assert keeper.report().failure is None
