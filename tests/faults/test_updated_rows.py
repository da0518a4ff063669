"""A short run of `tools.faults.updated_rows`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.server_process import ServerProcess
from tools.faults.updated_rows import check_checkpoint, live


@pytest.mark.slow
def test_rows_that_are_updated_are_never_mixed_or_lost(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    kept = tmp_path / "checkpoints"
    server = start_server("--data-dir", str(tmp_path / "data"), "--checkpoint-dir", str(kept))
    done = live(server, rows=4_000, kills=3, seed=1, note=lambda kill: None)
    assert min(done.values()) > 0
    newest = max(each for each in kept.iterdir() if each.is_dir() and not each.name.startswith("."))
    assert check_checkpoint(newest, tmp_path) == 4_000
