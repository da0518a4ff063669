"""The directory of a server's checkpoints: creates, lists, verifies and removes them.

    <checkpoint-dir>/lock                   held by the server that writes here
    <checkpoint-dir>/owner.json             which server that is
    <checkpoint-dir>/<series>-000001/       see docs/operations/checkpoints.md

A checkpoint gets its final name once it is completely on disk. It is renamed again before it is removed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from replay_proto.errors import FieldError
from replay_proto.owner import OWNER_FILE
from replay_proto.tracing import span

from replay_server import errors
from replay_server.catalog import Catalog
from replay_server.checkpoint.manifest import (
    CheckpointManifest,
    CheckpointRemovedError,
    DamagedCheckpointError,
    unless_removed,
)
from replay_server.checkpoint.reading import verify
from replay_server.checkpoint.snapshot import TableSnapshot, take_snapshots
from replay_server.checkpoint.writing import write_checkpoint
from replay_server.errors import StoppedError
from replay_server.files import held_folders, trust
from replay_server.files.durable_files import rename_durably
from replay_server.files.long_work import LongWork
from replay_server.files.mapped_file import tells_full
from replay_server.flow.turns import OneByOne
from replay_server.storage.ranges import CHECKPOINT_NUMBERS
from replay_server.storage.table_config import is_table_name

log = logging.getLogger(__name__)

DEFAULT_SERIES = "checkpoint"
PERIODIC_SERIES = "periodic"
_PARTIAL = ".partial-"
_REMOVED = ".removed-"
_NUMBERED = re.compile(r"(.+)-(\d{6,})")


@dataclass(frozen=True)
class Checkpoint:
    """An existing checkpoint."""

    folder: Path
    """The checkpoint's directory; its name is the checkpoint's name."""
    manifest: CheckpointManifest


@dataclass(frozen=True)
class DamagedCheckpoint:
    """A checkpoint whose manifest is missing or corrupt."""

    folder: Path
    damage: str
    """What is wrong, with the path of the manifest."""


@dataclass(frozen=True)
class FoundCheckpoints:
    """All existing checkpoints."""

    whole: Sequence[Checkpoint]
    """Those with a manifest, oldest first. Their other files were not checked."""
    damaged: Sequence[DamagedCheckpoint]
    """The others, by name."""


class Checkpoints:
    """Writes checkpoints, one at a time, and manages existing ones."""

    def __init__(self, catalog: Catalog, folder: Path, keep: int, stopped: threading.Event | None = None) -> None:
        """Lock the directory, and remove what unfinished writes and removals of checkpoints have left in it.

        By default, each series keeps its ``keep`` newest checkpoints. Setting ``stopped`` ends the work early. Raises
        like `held_folders.hold`.
        """
        self.folder = folder.absolute()
        self._catalog = catalog
        self._keep = keep
        self._writing = OneByOne(catalog.waiting)
        self._listing = OneByOne(catalog.waiting)
        self._verifying = OneByOne(catalog.waiting)
        self._cancelled = threading.Event()
        self._has_failed = False  # the last periodic checkpoint
        self._is_without_tables = False
        self._damaged: set[Path] = set()  # checkpoints that were warned of
        self._held = held_folders.hold(self.folder, "--checkpoint-dir", stopped)
        self._held.owner.keep()
        for path in self.folder.iterdir():
            if path.name.startswith((_PARTIAL, _REMOVED)):
                shutil.rmtree(path, ignore_errors=True)

    @staticmethod
    def check(folder: Path) -> None:
        """Check that no other user of this machine owns or can change checkpoints in a directory.

        See `replay_server.files.trust` for the errors.
        """
        trust.make_folder(folder)
        trust.check_entries([folder / held_folders.LOCK, folder / OWNER_FILE])
        own = [path for path in folder.iterdir() if path.name.startswith((_PARTIAL, _REMOVED)) or _is_name(path.name)]
        trust.check_entries(own)
        for path in own:
            if path.is_dir():
                trust.check_tree(path)

    async def create(
        self,
        tables: Sequence[str] = (),
        series: str = DEFAULT_SERIES,
        keep: int = 0,
        check: Callable[[Iterable[str]], None] | None = None,
        *,
        number: int = 0,
        shard_id: int | None = None,
        client: str = "",
    ) -> Checkpoint:
        """Write a checkpoint of some tables, or of all.

        Args:
            tables: names of the tables; empty: all.
            series: prefix of the checkpoint's name.
            keep: checkpoints to keep in the series, including this one; 0: the default.
            check: called with the names of the tables in the series' existing checkpoints; raises if the caller may not
                administer all of them. None for the server's own checkpoints, which are also exempt from limits.
            number: number of the checkpoint in its series, which must be greater than the last checkpoint's number; 0:
                the next number.
            shard_id: id of this server's shard in the shard map, if the caller knows it.
            client: identity of the caller, for the log.

        Raises:
            RequestError: TABLE_NOT_FOUND, PERMISSION_DENIED, TOO_LARGE, NO_SPACE, STORAGE_LOST or SHUTTING_DOWN.
            FieldError: for an invalid series name or number, a negative ``keep``, or an unknown shard.
            OSError: for other disk errors.
        """
        if number:
            CHECKPOINT_NUMBERS.check("number", number)
        _check_name(series, number or 1)
        if keep < 0:
            raise FieldError("keep", "at least 0", str(keep))
        shards = self._catalog.shards.current
        if shard_id is not None and not (shards and shards.has(shard_id)):
            raise FieldError("shard_id", "a shard in the shard map of this server", str(shard_id))
        return await self._writing.do(
            client, lambda: self._create(tables, series, number, shard_id, keep or self._keep, check, client)
        )

    async def _create(
        self,
        tables: Sequence[str],
        series: str,
        number: int,
        shard_id: int | None,
        keep: int,
        check: Callable[[Iterable[str]], None] | None,
        client: str,
    ) -> Checkpoint:
        if self._cancelled.is_set():
            raise errors.shutting_down()
        await asyncio.to_thread(self._held.owner.look)
        self._held.owner.check()
        # No other call writes to the series until old checkpoints are removed.
        if check is not None:
            check(await asyncio.to_thread(self._tables_in, series))
        number = await asyncio.to_thread(self._checked_number, series, number)
        chosen = [self._catalog.find(name) for name in sorted(set(tables))] if tables else list(self._catalog)
        began, taken_s = time.monotonic(), time.time()
        snapshots = await take_snapshots(chosen)
        if check is not None:
            await asyncio.to_thread(self._check_room, series, sum(snapshot.nbytes for snapshot in snapshots))
        try:
            with span("replay/write checkpoint"):
                made = await asyncio.to_thread(self._write, _name(series, number), snapshots, taken_s, shard_id)
        except StoppedError:
            raise errors.shutting_down() from None
        except OSError as error:
            if tells_full(error):
                raise errors.no_space(series, self.folder, "checkpoint") from error
            raise
        await asyncio.to_thread(self._remove_beyond, series, keep)
        duration_s = time.monotonic() - began
        log.info(
            "checkpoint %s written: %d tables, %.1f MB in %.1f s",
            *(made.folder.name, len(snapshots), made.manifest.nbytes / 1e6, duration_s),
            extra={"checkpoint": made.folder.name, "client": client, "duration_s": round(duration_s, 6)},
        )
        return made

    async def create_after(self, interval_s: float) -> None:
        """Write a periodic checkpoint of all tables after ``interval_s`` seconds, or at once if the last one failed.

        Without tables, write none: it would take the place of one with the tables of an earlier start.
        """
        await asyncio.sleep(0.0 if self._has_failed else interval_s)
        self._has_failed = False
        if not list(self._catalog):
            if not self._is_without_tables:
                log.info("no periodic checkpoint is written as long as there are no tables")
            self._is_without_tables = True
            return
        self._has_failed, self._is_without_tables = True, False
        await self.create(series=PERIODIC_SERIES)
        self._has_failed = False

    async def all(self, *, client: str = "") -> FoundCheckpoints:
        """Find all checkpoints, and log each damaged one once.

        ``client`` is the identity of the caller; callers take turns.
        """
        return await self._listing.do(client, lambda: asyncio.to_thread(self._list))

    async def verify(self, name: str, *, client: str = "") -> Checkpoint:
        """Verify a checkpoint; stop if this call is canceled. ``client`` is as for `all`.

        Raises:
            RequestError: CHECKPOINT_NOT_FOUND or CHECKPOINT_DAMAGED.
        """
        stopped = threading.Event()
        try:
            return await self._verifying.do(client, lambda: self._verify(name, stopped))
        finally:
            stopped.set()

    async def _verify(self, name: str, stopped: threading.Event) -> Checkpoint:
        folder = self.folder / name
        if not _is_name(name) or not folder.is_dir():
            raise errors.checkpoint_not_found(name)
        try:
            work = LongWork(f"verifying {folder}", stopped)
            return Checkpoint(folder, await asyncio.to_thread(verify, folder, work))
        except CheckpointRemovedError:
            raise errors.checkpoint_not_found(name) from None
        except DamagedCheckpointError as error:
            raise errors.checkpoint_damaged(name, str(error.path.relative_to(folder)), str(error)) from error

    async def close(self) -> None:
        """Cancel a running checkpoint, and unlock the directory."""
        self._cancelled.set()
        await self._writing.ended()
        self._held.close()

    def _check_room(self, series: str, size: int) -> None:
        found = (_NUMBERED.fullmatch(path.name) for path in self.folder.iterdir())
        all_series = {series, *(match[1] for match in found if match)}
        self._catalog.bounds.check_checkpoint(all_series, _bytes_below(self.folder) + size)

    def _checked_number(self, series: str, wanted: int) -> int:
        """Return the number for a new checkpoint of a series: ``wanted`` or, if that is 0, the next number.

        Raises:
            FieldError: ``wanted`` is not above the last number, no number is left, or the name is too long.
        """
        last = max((number for _, number in self._of(series)), default=0)
        if wanted and wanted <= last:
            raise FieldError("number", f"more than {last}, the last of series {series!r}", str(wanted))
        number = CHECKPOINT_NUMBERS.check("number", wanted or last + 1)
        _check_name(series, number)
        return number

    def _write(self, name: str, snapshots: Sequence[TableSnapshot], taken_s: float, shard_id: int | None) -> Checkpoint:
        partial = self.folder / f"{_PARTIAL}{name}"
        try:
            partial.mkdir(mode=0o700)
            manifest = write_checkpoint(
                partial, snapshots, taken_s, self._cancelled, self._catalog.shards.current, shard_id
            )
            final = rename_durably(partial, self.folder / name)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return Checkpoint(final, manifest)

    def _remove_beyond(self, series: str, keep: int) -> None:
        for path, _ in self._of(series)[:-keep]:
            shutil.rmtree(path.rename(path.with_name(f"{_REMOVED}{path.name}")), ignore_errors=True)

    def _tables_in(self, series: str) -> set[str]:
        """Return the names of the tables in a series. A corrupt checkpoint adds "", a name that no table can have."""
        names: set[str] = set()
        for path, _ in self._of(series):
            try:
                names.update(table.config.name for table in CheckpointManifest.load(path).tables)
            except DamagedCheckpointError:
                names.add("")
        return names

    def _of(self, series: str) -> list[tuple[Path, int]]:
        """Checkpoints of a series with their numbers, oldest first."""
        found = [(path, _NUMBERED.fullmatch(path.name)) for path in self.folder.iterdir()]
        numbered = [(path, int(match[2])) for path, match in found if match is not None and match[1] == series]
        return sorted(numbered, key=lambda each: each[1])

    def _list(self) -> FoundCheckpoints:
        whole, damaged = [], []
        for path in self.folder.iterdir():
            if path.is_dir() and _is_name(path.name):
                try:
                    with unless_removed(path):
                        whole.append(Checkpoint(path, CheckpointManifest.load(path)))
                except DamagedCheckpointError as error:
                    # An open page asks for the list again and again.
                    log.log(logging.DEBUG if path in self._damaged else logging.WARNING, "%s", error)
                    self._damaged.add(path)
                    damaged.append(DamagedCheckpoint(path, str(error)))
                except CheckpointRemovedError:
                    continue
        return FoundCheckpoints(
            sorted(whole, key=lambda each: (each.manifest.taken_s, each.folder.name)),
            sorted(damaged, key=lambda each: each.folder.name),
        )


def _is_name(name: str) -> bool:
    return _NUMBERED.fullmatch(name) is not None and is_table_name(name)


def _check_name(series: str, number: int) -> None:
    """Check the whole name of a checkpoint."""
    if not is_table_name(_name(series, number)):
        raise FieldError(
            "series",
            "letters, digits, '_', '-' or '.', a letter or digit first, at most 128 characters with the number",
            repr(_name(series, number)),
        )


def _bytes_below(folder: Path) -> int:
    """Return the total bytes of all files below ``folder``, ignoring files that are removed meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


def _name(series: str, number: int) -> str:
    return f"{series}-{number:06d}"
