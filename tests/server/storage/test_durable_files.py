"""Small files that are written durably, on a disk that takes only a part of each write."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from replay_server.checkpoint.writing import write_file
from replay_server.files.durable_files import overwrite_file

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
