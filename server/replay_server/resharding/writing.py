"""Writes the parts for the new servers into one folder: all of them, or none.

Each part is in ``shard-<id>/<name of the checkpoint>``; docs/checkpoints.md describes its files.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from replay_server.checkpoint.manifest import CheckpointManifest, FileManifest, TableManifest
from replay_server.checkpoint.writing import WRITERS_FILE, ChecksummedFile, write_file, write_manifest
from replay_server.files import held_folders
from replay_server.files.durable_files import sync_path
from replay_server.resharding.dividing import NewShard, new_states, share
from replay_server.resharding.parts import OldTable
from replay_server.resharding.placing import Placement
from replay_server.storage.shard_map import ShardMap
from replay_server.storage.writer_records import WRITER_RECORDS_BYTES

_PARTIAL = ".partial-"


@dataclass(frozen=True)
class NewTable:
    """A table, and how its rows are divided."""

    old: OldTable
    shards: Sequence[NewShard]
    """The table on each of the new servers."""
    placement: Placement

    @property
    def capacity(self) -> int:
        """The capacity of each shard."""
        return self.shards[0].config.capacity

    @property
    def evicted(self) -> int:
        """Rows for which the new shards have no room."""
        return sum(max(0, size - self.capacity) for size in self.placement.sizes)


def write_parts(
    out: Path, name: str, ids: Sequence[int], shards: ShardMap | None, tables: Sequence[NewTable], taken_s: float
) -> list[Path]:
    """Write a part for each new server, and return their folders.

    Args:
        out: the folder for all parts; it must not exist.
        name: name of the checkpoint.
        ids: the ids of the new servers' shards.
        shards: the new shard map; None for a single server.
        tables: the tables.
        taken_s: time of the checkpoint.

    Raises:
        OSError: the parts cannot be written, for instance because the disk is full. Nothing is left behind.
    """
    places = [Path(f"shard-{shard_id}") / name for shard_id in ids]
    with _whole_or_absent(out) as unfinished:
        folders = [unfinished / place for place in places]
        for folder in folders:
            folder.parent.mkdir(mode=0o700)
            folder.mkdir(mode=0o700)
        written = [_write_table(table, folders) for table in tables]
        for number, folder in enumerate(folders):
            own = [of_table[number] for of_table in written]
            shard_id = None if shards is None else ids[number]
            write_manifest(folder, CheckpointManifest(taken_s, own, shards, shard_id))
            CheckpointManifest.load(folder)  # raises an error if a server would refuse it
            sync_path(folder.parent)
    return [out / place for place in places]


@contextmanager
def _whole_or_absent(out: Path) -> Iterator[Path]:
    """Create a folder for the block to fill, and move it to ``out`` if the block succeeds.

    What killed runs have left behind is removed.
    """
    prefix = f"{_PARTIAL}{out.name}-"
    held_folders.sweep(out.parent, prefix)
    held = held_folders.make(out.parent, prefix)
    try:
        unfinished = held.path / out.name
        unfinished.mkdir(mode=0o700)
        yield unfinished
        sync_path(unfinished)
        unfinished.rename(out)
        sync_path(out.parent)
    finally:
        shutil.rmtree(held.path, ignore_errors=True)
        held.close()


def _write_table(table: NewTable, parents: Sequence[Path]) -> list[TableManifest]:
    """Write the files of all shards of a table, and return their manifests."""
    folders = [parent / table.old.name for parent in parents]
    for folder in folders:
        folder.mkdir(mode=0o700)
    files = _write_rows(table, folders)
    states = new_states(
        [shard.manifest.state for shard in table.old.shards], table.shards[0].config, table.placement.sizes
    )
    # Writers of the old tables must not continue: the new tables do not know which of their inserts they have.
    no_writers = np.zeros(WRITER_RECORDS_BYTES, np.uint8)
    left_out = sum(shard.manifest.left_out for shard in table.old.shards)
    manifests = []
    for number, (folder, shard) in enumerate(zip(folders, table.shards, strict=True)):
        own = [*files[number], write_file(folder / WRITERS_FILE, no_writers)]
        sync_path(folder)
        own_left_out = share(left_out, number, len(folders))
        manifests.append(TableManifest(shard.config, shard.uid, states[number], own_left_out, own))
    return manifests


def _write_rows(table: NewTable, folders: Sequence[Path]) -> list[list[FileManifest]]:
    """Write the rows of a table piece by piece, without those that are evicted; return the files of each folder."""
    rows = table.placement.rows
    to_skip = [max(0, size - table.capacity) for size in table.placement.sizes]
    with ExitStack() as open_files:
        files = [
            {name: open_files.enter_context(closing(ChecksummedFile(folder / name))) for name in rows.files}
            for folder in folders
        ]
        for placed in table.placement.pieces():
            chosen = []
            for number in range(len(folders)):
                own = np.flatnonzero(placed.shards == number)
                chosen.append(own[to_skip[number] :])
                to_skip[number] -= len(own) - len(chosen[-1])
            for name in rows.files:
                values = rows.read(name, placed.old_shards, placed.rows)
                for own_files, own in zip(files, chosen, strict=True):
                    own_files[name].write(values[own])
        return [[file.finish() for file in own_files.values()] for own_files in files]
