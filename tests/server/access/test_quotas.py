"""Quotas on the tables of one token, with tables of others, and across restarts and restores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from replay_client import Column, ReplayClient, ResourceExhaustedError, Table
from replay_proto.access.tokens import read_entries
from replay_proto.access.watched import UnusableFileError
from replay_proto.schema import Schema
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import full_bytes
from replay_server.table.table import memory_bytes

from tests.support.access import token_entry
from tests.support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]
Connect = Callable[[ServerProcess, str], ReplayClient]
COLUMNS: Final = {"x": Column("int64")}
CONFIG: Final = TableConfig("t", Schema(COLUMNS), 1000, "rank")
TABLE_BYTES: Final = full_bytes(CONFIG) + memory_bytes(CONFIG)
BOUNDED, FREE = (f"{name}-{'x' * 20}" for name in ("bounded", "free"))
RIGHTS: Final = ["read", "write", "admin"]


def write_tokens(path: Path, bounds: str) -> Path:
    """Write a token with limits, such as ``max_tables = 2``, and one without."""
    path.write_text(token_entry("bounded", BOUNDED, RIGHTS) + bounds + "\n" + token_entry("free", FREE, RIGHTS))
    return path


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Creates clients with a token."""
    with ExitStack() as stack:
        yield lambda server, token: stack.enter_context(ReplayClient(server.address, token=token, same_host=False))


def create(client: ReplayClient, name: str) -> Table:
    return client.create_table(name, columns=COLUMNS, capacity=CONFIG.capacity, backend="rank", if_exists="open")


@contextmanager
def beyond(bound: str, setting: str, limit: int, got: int) -> Iterator[None]:
    with pytest.raises(ResourceExhaustedError) as refusal:
        yield
    expected = {"bound": bound, "setting": setting, "limit": str(limit), "got": str(got)}
    assert expected.items() <= refusal.value.metadata.items()


def one_table_too_many() -> ExitStack:
    """Expect a refusal of a table beyond the limit of one."""
    stack = ExitStack()
    stack.enter_context(beyond("tables of the token 'bounded'", "max_tables of the token 'bounded'", 1, 2))
    return stack


def test_the_tables_of_a_token_take_so_many_bytes_with_their_indexes(
    start_server: StartServer, connect: Connect, tmp_path: Path
) -> None:
    server = start_server("--tokens", str(write_tokens(tmp_path / "tokens.toml", f"max_bytes = {2 * TABLE_BYTES}")))
    bounded, free = connect(server, BOUNDED), connect(server, FREE)
    create(free, "others")
    create(bounded, "one")
    full = create(bounded, "two")
    bound = "bytes of all tables when full, of the token 'bounded'"
    with beyond(bound, "max_bytes of the token 'bounded'", 2 * TABLE_BYTES, 3 * TABLE_BYTES):
        create(bounded, "three")
    assert not create(bounded, "two").created, "one that is there is opened"
    create(free, "more")
    for _ in range(3):
        full.insert({"x": np.arange(1000)}, priorities=1.0 + np.arange(1000))
    assert full.stats().bytes + memory_bytes(CONFIG) == TABLE_BYTES
    free.table("one").drop()
    create(bounded, "three")


def test_tables_keep_their_owner_over_a_restart_and_in_a_checkpoint(
    start_server: StartServer, connect: Connect, tmp_path: Path
) -> None:
    tokens, checkpoints = write_tokens(tmp_path / "tokens.toml", "max_tables = 1"), tmp_path / "checkpoints"
    flags = ("--tokens", str(tokens), "--checkpoint-dir", str(checkpoints))
    server = start_server(*flags, "--data-dir", str(tmp_path / "data"))
    create(connect(server, FREE), "others")
    create(connect(server, BOUNDED), "one")
    with one_table_too_many():
        create(connect(server, BOUNDED), "two")
    made = connect(server, FREE).checkpoint().name
    server.terminate()
    server.restart()
    with one_table_too_many():
        create(connect(server, BOUNDED), "two")
    server.terminate()
    restored = start_server(*flags, "--data-dir", str(tmp_path / "restored"), "--restore", str(checkpoints / made))
    with one_table_too_many():
        create(connect(restored, BOUNDED), "two")
    create(connect(restored, FREE), "two")


@pytest.mark.parametrize("bound", ["max_tables = -1", "max_bytes = 1.5", 'max_bytes = "2GB"', "max_tables = true"])
def test_a_bound_is_a_whole_number(tmp_path: Path, bound: str) -> None:
    path = write_tokens(tmp_path / "tokens.toml", bound)
    with pytest.raises(UnusableFileError, match=f"{bound.split()[0]}: expected a whole number of at least 0"):
        read_entries(path)
