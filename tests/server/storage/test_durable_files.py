"""Small files and names that change durably, on a disk that takes only a part of each write, or fails."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from replay_server.catalog import Catalog
from replay_server.checkpoint.writing import write_file
from replay_server.files.durable_files import overwrite_file, replace_file
from replay_server.storage.root import Root
from replay_server.storage.table_config import TableConfig

from tests.support.rows import WHOLE

CONTENT = bytes(range(200))


def written(path: Path) -> bytes:
    overwrite_file(path, CONTENT)
    return path.read_bytes()


def checkpointed(path: Path) -> bytes:
    assert write_file(path, np.frombuffer(CONTENT, np.uint8)).size == len(CONTENT)
    return path.read_bytes()


@pytest.mark.parametrize("write", [written, checkpointed])
def test_short_writes_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], bytes]
) -> None:
    whole = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: whole(descriptor, memoryview(content)[:7]))
    assert write(tmp_path / "file") == CONTENT


def refuse_folders(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Let a call of `os` fail for folders."""
    whole: Callable[..., int] = getattr(os, call)

    def refusing(what: int | Path, *arguments: int) -> int:
        if Path(f"/proc/self/fd/{what}").is_dir() if call == "fsync" else Path(str(what)).is_dir():
            raise OSError(errno.EIO, "broken")
        return whole(what, *arguments)

    monkeypatch.setattr(os, call, refusing)


@pytest.mark.parametrize("call", ["open", "fsync"])
@pytest.mark.parametrize("old", [None, "old"])
def test_a_file_that_cannot_be_replaced_durably_keeps_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, old: str | None
) -> None:
    path = tmp_path / "file"
    if old is not None:
        replace_file(path, old)
    with monkeypatch.context() as patch:
        refuse_folders(patch, call)
        with pytest.raises(OSError, match="broken"):
            replace_file(path, "new")
    assert (path.read_text() if path.exists() else None) == old
    replace_file(path, "new")
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"file": "new"}


@pytest.mark.parametrize("call", ["open", "fsync"])
def test_a_table_that_cannot_be_dropped_durably_is_still_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    async def test() -> None:
        catalog = Catalog(Root.durable(tmp_path), checked=True)
        table, _ = await catalog.create(TableConfig("t", WHOLE, 100))
        with monkeypatch.context() as patch:
            refuse_folders(patch, call)
            with pytest.raises(OSError, match="broken"):
                await catalog.drop("t", b"")
        assert catalog.find("t") is table
        assert table.directory.folder.is_dir()
        await catalog.drop("t", b"")
        assert catalog.get("t") is None
        assert list(catalog.folder.iterdir()) == []
        catalog.close()

    asyncio.run(test())
