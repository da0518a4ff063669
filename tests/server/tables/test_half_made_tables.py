"""Creating and dropping tables is atomic, even if callers disconnect or something fails."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from replay_server.catalog import Catalog
from replay_server.errors import RequestError
from replay_server.storage.root import Root
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import TableDirectory
from replay_server.table import table as table_module

from tests.support.rows import WHOLE

CONFIG = TableConfig("t", WHOLE, capacity=1000)
TURNS = 6
"""Turns of the event loop before the caller disconnects."""


async def hang_up(call: asyncio.Task[Any], turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


@pytest.mark.parametrize("turns", range(TURNS))
@pytest.mark.parametrize("checked", [False, True])
def test_a_table_whose_maker_hangs_up_can_be_made_again(tmp_path: Path, turns: int, checked: bool) -> None:
    async def run() -> None:
        catalog = Catalog(Root.durable(tmp_path), checked=checked)
        await hang_up(asyncio.create_task(catalog.create(CONFIG)), turns)
        table, _ = await catalog.create(CONFIG)
        assert table.directory.folder.is_dir()
        assert catalog.find("t") is table
        await catalog.drop("t", b"")
        assert list((tmp_path / "tables").iterdir()) == []

    asyncio.run(run())


@pytest.mark.parametrize("turns", range(1, TURNS))
@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("is_held", [False, True], ids=["at once", "while it is synced"])
def test_a_table_whose_dropper_hangs_up_is_whole_or_gone_and_can_be_made_again(
    tmp_path: Path, turns: int, checked: bool, is_held: bool
) -> None:
    async def run() -> None:
        catalog = Catalog(Root.durable(tmp_path), checked=checked)
        table, _ = await catalog.create(CONFIG)
        hold = table.directory.in_use
        if is_held:
            await hold.acquire()
        await hang_up(asyncio.create_task(catalog.drop("t", b"")), turns)
        if is_held:
            hold.release()
        # A drop that has begun runs to its end. One that is still in line is not begun, so the table is whole.
        with suppress(RequestError):
            assert catalog.find("t") is table
            await catalog.drop("t", b"")
        with pytest.raises(RequestError, match="no table"):
            catalog.find("t")
        again, created = await catalog.create(CONFIG)
        assert created
        assert again.uid != table.uid
        assert [path.name for path in (tmp_path / "tables").iterdir() if not path.name.startswith(".")] == ["t"]

    asyncio.run(run())


def test_a_table_without_memory_for_its_index_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    async def run() -> None:
        catalog = Catalog(Root.durable(tmp_path))
        with monkeypatch.context() as patch:
            patch.setattr(table_module, "make_index", no_memory)
            with pytest.raises(RequestError, match="no space left"):
                await catalog.create(CONFIG)
        assert list((tmp_path / "tables").iterdir()) == []
        _, created = await catalog.create(CONFIG)
        assert created

    asyncio.run(run())


def test_a_table_that_the_disk_does_not_let_go_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(_: TableDirectory) -> Path:
        raise OSError(errno.EROFS, "read-only file system")

    async def run() -> None:
        catalog = Catalog(Root.durable(tmp_path))
        table, _ = await catalog.create(CONFIG)
        with monkeypatch.context() as patch:
            patch.setattr(TableDirectory, "hide", read_only)
            with pytest.raises(OSError, match="read-only"):
                await catalog.drop("t", b"")
        assert catalog.find("t") is table
        await catalog.drop("t", b"")
        assert list((tmp_path / "tables").iterdir()) == []

    asyncio.run(run())
