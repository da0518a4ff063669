"""Recoveries interrupted by a kill or another power loss: the next one succeeds."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from replay_server.storage.table_directory import TableDirectory
from replay_server.table.table import Table

from tests.server.storage.test_power_loss import Life, live_values
from tests.support.invariants import check_table
from tests.support.power import copy_of, damage_pages, mixture, write_files

SYNCS = ("fsync", "fdatasync")


class CutShortError(BaseException):
    """Simulates the death of the process."""


class Cut:
    """Raises at the n-th sync."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, files: dict[str, bytes]) -> None:
        self.left = at
        self.on_disk = dict(files)
        """Of each file, what was there at its last sync."""
        for name in SYNCS:
            monkeypatch.setattr(os, name, self._wrapped(getattr(os, name)))

    def _wrapped(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def cut(descriptor: int) -> None:
            if self.left == 0:
                raise CutShortError
            self.left -= 1
            sync(descriptor)
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if path.name in self.on_disk:
                self.on_disk[path.name] = path.read_bytes()

        return cut


def torn_table(folder: Path, seed: int) -> dict[str, bytes]:
    """The files of a table after a power loss that also tore rows synced long ago."""
    life = Life(folder, seed)
    life.use(60)
    life.sync()
    life.use(8)
    versions = [life.synced, copy_of(life.table.directory.folder)]
    life.table.close()
    pages = random.Random(seed)
    left = {name: mixture(pages, [each[name] for each in versions], 0.3) for name in life.synced}
    # The header counts rows that are lost.
    left["header.bin"] = versions[-1]["header.bin"]
    write_files(folder / "table", left)
    damage_pages(folder / "table" / "column-001.bin", pages, 1)
    return copy_of(folder / "table")


def recovered(folder: Path) -> tuple[dict[int, int], int, int, int]:
    """Recovered state: live rows, and numbers of inserted rows, lost rows and writers' records."""
    table = Table(TableDirectory.open(folder, may_be_torn=True))
    check_table(table)
    directory = table.directory
    found = (live_values(table), table.inserted, directory.lost, hash(directory.writers.used()))
    table.close()
    return found


@pytest.mark.parametrize("loses_power", [False, True], ids=["killed", "another loss of power"])
@pytest.mark.parametrize("seed", range(6))
def test_the_next_recovery_comes_to_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, loses_power: bool
) -> None:
    torn = torn_table(tmp_path, seed)
    folder = tmp_path / "table"
    expected = recovered(folder)
    assert expected[2] > 0, "nothing was lost"
    cut_at = 0
    while True:
        write_files(folder, torn)
        with monkeypatch.context() as patched:
            cut = Cut(patched, cut_at, torn)
            try:
                recovered(folder)
                break
            except CutShortError:
                pass
        if loses_power:
            # Any pages written since the last completed sync may be on the disk.
            pages = random.Random(seed * 100 + cut_at)
            left = copy_of(folder)
            write_files(folder, {name: mixture(pages, [cut.on_disk[name], left[name]], 0.5) for name in left})
        found = recovered(folder)
        assert found == expected, f"cut at sync {cut_at}"
        cut_at += 1
    assert cut_at >= 5, "a recovery syncs sync point, header, records, priorities and checksums"
