"""Reads the parts of a checkpoint, and checks that they belong together.

old = read_parts([Path("a/checkpoint-000002"), Path("b/checkpoint-000002")], partial=False)
old.verify()                                # the checksums of all files
old.tables[0].shards[0].manifest.size
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from replay_proto.shard_maps import is_made_from

from replay_server.checkpoint.manifest import MANIFEST_FILE, CheckpointManifest, TableManifest
from replay_server.checkpoint.reading import no_checkpoint, verify
from replay_server.errors import FatalError
from replay_server.storage.shard_map import ShardMap


class ReshardError(FatalError):
    """A checkpoint cannot be resharded; the message says why. Nothing was written."""


@dataclass(frozen=True)
class Part:
    """One server's part of a checkpoint."""

    folder: Path
    manifest: CheckpointManifest

    @property
    def name(self) -> str:
        """The checkpoint's name."""
        return self.folder.resolve().name

    def __str__(self) -> str:
        """Name the part in messages."""
        shard_id = self.manifest.shard_id
        return str(self.folder) if shard_id is None else f"{self.folder} of shard {shard_id}"


@dataclass(frozen=True)
class OldShard:
    """One server's part of a table."""

    folder: Path
    """The folder with the table's files."""
    manifest: TableManifest


@dataclass(frozen=True)
class OldTable:
    """A table, with the parts that have been given."""

    shards: Sequence[OldShard]
    """At least one; in the order of the given parts."""
    in_use: int
    """Number of servers at the time of the checkpoint."""

    @property
    def name(self) -> str:
        """The table's name."""
        return self.shards[0].manifest.config.name

    @property
    def size(self) -> int:
        """Rows in all parts."""
        return sum(shard.manifest.size for shard in self.shards)


@dataclass(frozen=True)
class OldCheckpoint:
    """A checkpoint, with the parts that have been given."""

    parts: Sequence[Part]
    shards: ShardMap | None
    """The newest shard map among the parts. None if the checkpoint is of a server that shared no tables."""
    tables: Sequence[OldTable]
    """Sorted by name."""

    @property
    def name(self) -> str:
        """The checkpoint's name, which all parts have."""
        return self.parts[0].name

    def verify(self) -> None:
        """Verify the checksums of all files.

        Raises:
            DamagedCheckpointError: a file is corrupt.
            CheckpointRemovedError: a part was removed while it was read.
        """
        for part in self.parts:
            verify(part.folder)


def read_parts(folders: Sequence[Path], *, partial: bool) -> OldCheckpoint:
    """Read the manifests of a checkpoint's parts; ``partial`` accepts missing parts.

    Raises:
        ReshardError: a folder has no part, parts are missing, or they are not of one checkpoint.
        DamagedCheckpointError: a manifest is corrupt.
    """
    parts = [_read(folder) for folder in folders]
    _check_different(parts)
    shards = _newest_map(parts)
    if shards is not None:
        _check_complete(parts, shards, partial=partial)
    in_use = 1 if shards is None else len(shards.in_use)
    by_name: dict[str, list[OldShard]] = {}
    for part in parts:
        for manifest in part.manifest.tables:
            name = manifest.config.name
            by_name.setdefault(name, []).append(OldShard(part.folder / name, manifest))
    tables = [OldTable(found, in_use) for _, found in sorted(by_name.items())]
    for table in tables:
        _check_alike(table)
        if shards is not None:
            _check_undropped(table, shards, missing=in_use - len(parts))
    return OldCheckpoint(parts, shards, tables)


def _read(folder: Path) -> Part:
    if not (folder / MANIFEST_FILE).is_file():
        raise ReshardError(f"expected the folder of a checkpoint, got {str(folder)!r}, which {no_checkpoint(folder)}")
    return Part(folder, CheckpointManifest.load(folder))


def _check_different(parts: Sequence[Part]) -> None:
    """Check that the parts have the same name, and that no part was given twice."""
    first, found = parts[0], dict[object, Part]()
    for part in parts:
        if part.name != first.name:
            raise ReshardError(
                f"expected parts of one checkpoint, which have the same name, got {first} and {part}; if they "
                "are of one checkpoint, give their folders the same name"
            )
        shard_id = part.manifest.shard_id
        identities = [part.folder.resolve(), *(table.uid for table in part.manifest.tables)]
        for identity in identities if shard_id is None else [shard_id, *identities]:
            same = found.setdefault(identity, part)
            if same is not part:
                raise ReshardError(f"expected different parts of a checkpoint, got {same} and {part}, which are one")


def _newest_map(parts: Sequence[Part]) -> ShardMap | None:
    """Return the newest shard map, after checking that all parts are of the same servers."""
    maps = [part.manifest.shards for part in parts if part.manifest.shards]
    expected = "expected parts of one checkpoint of several servers"
    for part in parts:
        shards = part.manifest.shards
        if shards is None and len(parts) > 1:
            raise ReshardError(f"{expected}, got {part}, which has no shard map")
        if shards and shards.uid != maps[0].uid:
            raise ReshardError(f"{expected}, got {part}, which is of other servers than {parts[0]}")
    newest = max(maps, key=lambda shards: shards.version, default=None)
    for part in parts:
        shards = part.manifest.shards
        if newest and shards and not is_made_from(newest, shards):
            raise ReshardError(
                f"{expected}, got {part}, whose shard map of version {shards.version} differs from others: that of "
                f"version {newest.version} was not made from it"
            )
    return newest


def _check_complete(parts: Sequence[Part], shards: ShardMap, *, partial: bool) -> None:
    ids = [shard.id for shard in shards.in_use]
    for part in parts:
        if part.manifest.shard_id not in (None, *ids):
            raise ReshardError(f"expected parts of shards {', '.join(map(str, ids))}, got {part}, which is not in use")
    if len(parts) > len(shards.in_use):
        raise ReshardError(f"expected the parts of {len(shards.in_use)} servers, got {len(parts)}: {_names(parts)}")
    if len(parts) == len(shards.in_use) or partial:
        return
    known = {part.manifest.shard_id for part in parts}
    absent = ", ".join(f"shard {shard.id} at {shard.address}" for shard in shards.in_use if shard.id not in known)
    among = f"{len(shards.in_use) - len(parts)} of these parts: " if None in known else "the parts of "
    raise ReshardError(
        f"the checkpoint lacks {among}{absent}; got {_names(parts)}; to give up the rows of missing parts, pass "
        "--partial"
    )


def _check_alike(table: OldTable) -> None:
    """Check that the parts of a table belong to one table."""
    first = table.shards[0]
    wholes = {shard.manifest.config.whole_uid or shard.manifest.uid: shard for shard in table.shards}
    for shard in table.shards:
        difference = first.manifest.config.difference(shard.manifest.config)
        if difference is not None:
            raise ReshardError(
                f"table {table.name!r}: expected one config in all parts, but in {first.folder} {difference.field} is "
                f"{difference.expected}, and in {shard.folder} {difference.got}"
            )
    if len(wholes) > 1 and any(shard.manifest.config.whole_shards for shard in table.shards):
        folders = ", ".join(str(shard.folder) for shard in wholes.values())
        raise ReshardError(
            f"table {table.name!r}: expected parts of one table, but these are of tables that were created one after "
            f"the other: {folders}; `replay drop` drops what is left of the earlier one"
        )


def _check_undropped(table: OldTable, shards: ShardMap, *, missing: int) -> None:
    """Check that a table has its rows in all parts. If not, it was dropped while a server was away."""
    created_on = {shard_id for shard in table.shards for shard_id in shard.manifest.config.whole_shards}
    expected = len(created_on.intersection(shard.id for shard in shards.in_use)) - missing
    if table.size and len(table.shards) < expected:
        raise ReshardError(
            f"table {table.name!r}: expected it in {expected} parts, found it only in "
            f"{', '.join(str(shard.folder) for shard in table.shards)}, as after a drop while a server was away; "
            f"`replay drop {table.name} --yes` drops what is left of it"
        )


def _names(parts: Sequence[Part]) -> str:
    return ", ".join(map(str, parts))
