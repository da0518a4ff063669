"""The catalog of a server: creates, finds, lists, resets and drops tables by name, and reopens stored ones."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from replay_proto.access.tokens import TokenEntry

from replay_server import errors
from replay_server.auth import Caller
from replay_server.errors import StoppedError
from replay_server.files.mapped_file import NoSpaceError
from replay_server.files.memory_limit import MemoryLimit, is_in_memory
from replay_server.flow import resetting
from replay_server.flow.admission import Admission, Limits
from replay_server.flow.bounds import Bounds, check_descriptors, check_quota, no_descriptors
from replay_server.flow.budgets import Budget, QueuedBudget
from replay_server.flow.leases import Lease
from replay_server.flow.turns import LongCalls, OneByOne
from replay_server.flow.waits import Wait
from replay_server.storage.root import Root
from replay_server.storage.shard_map import ShardMapFile
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import (
    DamagedTableError,
    TableDirectory,
    empty_bytes,
    finished_tables,
    full_bytes,
)
from replay_server.table.table import Table, memory_bytes

log = logging.getLogger(__name__)


class Catalog:
    """The tables of a server. Long operations (allocating and removing files) run in a worker thread."""

    def __init__(
        self, root: Root, bounds: Bounds | None = None, *, checked: bool = False, memory: MemoryLimit | None = None
    ) -> None:
        """Start without tables. Call `open_tables` to open the tables that are stored in ``root``.

        ``checked`` says whether all tables get checksums, which detect rows torn by a power loss. ``memory`` limits the
        memory of the tables; None: the limit of this process's cgroup.
        """
        self._root = root
        self.memory = memory or MemoryLimit()
        """The limit on memory, which counts the tables' files if they are in memory."""
        self._in_memory = is_in_memory(root.tables)
        self._checked = checked
        self.owner = root.owner
        """This server's claim to the directory of the tables."""
        self.bounds = bounds or Bounds()
        self.shards = ShardMapFile(root.path)
        """The shard map: the servers among which this service's tables are divided, if there are several."""
        self._tables: dict[str, Admission] = {}
        bounds, share = self.bounds, self.bounds.caller_share
        waiting = Budget("waiting calls", "max_waiting_calls of the server", bounds.max_waiting_calls, share)
        rows = Budget("bytes of waiting inserts", "max_waiting_mb of the server", bounds.max_waiting_bytes, share)
        self.waiting = waiting
        """Counts the waiting calls."""
        self._changing = OneByOne(waiting)
        self.limits = Limits(waiting, rows, bounds.max_wait_s)
        """Limits on the waiting calls of all tables."""
        self.long_calls = LongCalls(waiting)
        """Schedules calls with many rows."""
        self.outgoing = QueuedBudget(
            "bytes of replies", "max_outgoing_mb of the server", bounds.max_outgoing_bytes, share, waiting
        )
        """Budget for replies that are being built or sent."""

    @property
    def folder(self) -> Path:
        """The folder of the tables."""
        return self._root.tables

    def check_stores(self) -> None:
        """Check that what is stored in the tables outlives this server if it has to, as far as the owner knows.

        Raises:
            RequestError: STORAGE_LOST.
        """
        if not self._root.temporary:
            self.owner.check()

    async def check_folder(self) -> None:
        """Look whether the directory of the tables is still this server's; if not, refuse with STORAGE_LOST."""
        await asyncio.to_thread(self.owner.look)
        self.owner.check()

    def open_tables(self, stopped: threading.Event | None = None, restored: Collection[str] = ()) -> None:
        """Open the tables stored in the root. May run in any thread, before the catalog is used.

        ``restored`` names those that were just restored from a checkpoint: all of their rows were verified.

        Raises:
            StoppedError: ``stopped`` was set.
            DamagedTableError: a table is corrupt. With ``checked``, also if rows of a table without checksums may be
                torn, because they cannot be verified: see `Owner.doubt`.
        """
        for folder in finished_tables(self._root.tables):
            began = time.monotonic()
            if stopped is not None and stopped.is_set():
                raise StoppedError(f"opening table {folder.name}")
            doubt = None if folder.name in restored else self.owner.doubt
            table = self._table(self._open(folder, stopped, doubt))
            self._tables[table.name] = Admission(table, self.limits)
            log.info("table %s restored: %d rows", table.name, table.size, extra=_fields(table.name, began))
        self.owner.opened()

    def _open(self, folder: Path, stopped: threading.Event | None, doubt: str | None) -> TableDirectory:
        directory = TableDirectory.open(folder, may_be_torn=doubt is not None, stopped=stopped)
        if directory.is_checked:
            return directory
        if doubt is not None and self._checked and not self.owner.is_new:
            raise DamagedTableError(
                f"{folder}: {doubt}. Without checksums, torn rows cannot be detected. Restore a checkpoint, or accept "
                "the table as it is: start and stop the server once with --durability process"
            )
        if doubt is not None:
            log.warning("table %s: %s; without checksums, rows may be torn", folder.name, doubt)
        if self._checked:
            log.info("adding checksums to table %s", folder.name)
            try:
                directory.add_checksums()
            except NoSpaceError as error:
                log.error("table %s has no checksums, and a power loss may tear its rows: %s", folder.name, error)
                directory.close()
                return TableDirectory.open(folder)
        return directory

    def __iter__(self) -> Iterator[Table]:
        """Iterate over all tables, sorted by name."""
        return iter([self._tables[name].table for name in sorted(self._tables)])

    async def in_turns(self) -> AsyncIterator[Table]:
        """Iterate over all tables, sorted by name. Other calls run between two tables; tables they drop are skipped."""
        for name in sorted(self._tables):
            admission = self._tables.get(name)
            if admission is not None:
                yield admission.table
                await asyncio.sleep(0)

    def get(self, name: str) -> Table | None:
        """The table with this name, or None."""
        admission = self._tables.get(name)
        return None if admission is None else admission.table

    def find(self, name: str, uid: bytes = b"") -> Table:
        """Find a table by name, and check its uid unless ``uid`` is empty.

        Raises:
            RequestError: TABLE_NOT_FOUND, or TABLE_REPLACED if the table has another uid.
        """
        return self._find(name, uid).table

    def lease(self, name: str, uid: bytes = b"") -> Lease:
        """Find a table like `find`, for a call that awaits something before it has finished with the table."""
        return Lease(self._find(name, uid))

    def waits(self, table: Table) -> Iterator[Wait]:
        """Yield what the calls that wait for a table of this catalog wait for; see `Admission.waits`."""
        return self._tables[table.name].waits()

    def _find(self, name: str, uid: bytes) -> Admission:
        admission = self._tables.get(name)
        if admission is None:
            raise errors.table_not_found(name)
        if uid:
            admission.table.check_uid(uid)
        return admission

    async def create(
        self, config: TableConfig, creator: TokenEntry | None = None, *, client: str = ""
    ) -> tuple[Table, bool]:
        """Create a table within its creator's quota, or find the existing one with this name and config.

        The creator's token owns the table; if it is None, nobody does. ``client`` is the caller's identity for the log.

        Returns:
            The table, and whether this call created it.

        Raises:
            RequestError: TOO_LARGE, NO_SPACE, STORAGE_LOST, or TABLE_EXISTS if a table with this name has another
                config.
        """
        config = replace(config, owner="" if creator is None else creator.name)
        return await self._changing.do(client, lambda: self._create(config, creator, client))

    async def _create(self, config: TableConfig, creator: TokenEntry | None, client: str) -> tuple[Table, bool]:
        began = time.monotonic()
        existing = self.get(config.name)
        if existing is not None:
            difference = existing.config.difference(config)
            if difference is not None:
                raise errors.table_exists(config.name, difference)
            return existing, False
        size = _full_bytes(config, checked=self._checked)
        others = {table: _full_bytes(table.config, checked=table.directory.is_checked) for table in self}
        self.bounds.check_table(config, size, [*others.values()])
        if creator is not None:
            own = [taken for table, taken in others.items() if table.config.owner == creator.name]
            check_quota(creator, size, own)
        check_descriptors(config, [table.config for table in self])
        await self.check_folder()
        try:
            table = await asyncio.to_thread(self._make, config)
        except (NoSpaceError, MemoryError) as error:
            raise errors.no_space(config.name, self._root.tables, error=error) from None
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise no_descriptors(config) from None
            raise
        self._tables[config.name] = Admission(table, self.limits)
        fields = _fields(table.name, began, client)
        log.info("table %s created: %s, capacity %d", table.name, config.backend, config.capacity, extra=fields)
        return table, True

    async def drop(self, name: str, uid: bytes, *, client: str = "") -> None:
        """Drop a table, and refuse calls that wait for it; ``client`` is the caller's identity, for the log."""
        await self._changing.do(client, lambda: self._drop(name, uid, client))

    async def _drop(self, name: str, uid: bytes, client: str) -> None:
        began = time.monotonic()
        await self.check_folder()
        hidden, dropped = await self._hide(name, uid)
        await asyncio.to_thread(_remove, hidden, dropped)
        log.info("table %s dropped", name, extra=_fields(name, began, client))

    async def _hide(self, name: str, uid: bytes) -> tuple[Path, list[Table]]:
        """Remove a table from the catalog, and its directory from view. Return the directory's new path.

        Also return a list with the table, so that the caller can let go of it in another thread.
        """
        admission = self._find(name, uid)
        table = admission.table
        del self._tables[name]
        admission.drop(lambda: self._gone(name))
        await admission.idle()
        async with table.directory.in_use:
            try:
                return await asyncio.to_thread(table.directory.hide), [table]
            except OSError:
                self._tables[name] = admission  # keep it, so that its name stays reserved
                admission.gone = None
                raise

    def _gone(self, name: str) -> errors.RequestError:
        """Return the refusal of a call that still means a dropped table."""
        return errors.table_not_found(name) if name not in self._tables else errors.table_replaced(name)

    async def reset(self, lease: Lease, caller: Caller) -> int:
        """Remove all rows of a table, and refuse calls that wait for it. Return the number of live rows.

        Inserts that began earlier end first, and later ones wait.
        """
        began = time.monotonic()
        self.check_stores()
        table = lease.table

        async def work(removed: Callable[[], None]) -> int:
            rows = await resetting.reset(table, removed)
            fields = _fields(table.name, began, caller.identity)
            log.info("table %s reset: %d rows removed", table.name, rows, extra=fields)
            return rows

        return await lease.admission.reset(caller, work)

    async def inserts_ended(self) -> None:
        """Wait for running inserts, including those whose callers hung up."""
        for admission in list(self._tables.values()):
            await admission.idle()

    def refuse_waiting(self) -> None:
        """Refuse all waiting calls, because the server shuts down; later calls cannot wait."""
        self.limits.is_closing = True
        for admission in self._tables.values():
            admission.refuse_all(errors.shutting_down)

    def close(self) -> None:
        """Sync durable tables to disk and close all tables.

        Raises:
            FatalError: some tables could not be synced; the others have been synced.
        """
        refused: dict[str, OSError] = {}
        for table in self:
            try:
                if not self._root.temporary:
                    table.directory.write_out()
            except OSError as error:
                refused[table.name] = error
            table.close()
        self._tables.clear()
        if refused:
            reasons = "; ".join(f"{name}: {error}" for name, error in refused.items())
            raise errors.FatalError(f"tables not synced to disk, which a power loss may damage: {reasons}")
        self.owner.synced()

    def _table(self, directory: TableDirectory) -> Table:
        return Table(directory, self.memory if self._in_memory else None)

    def _make(self, config: TableConfig) -> Table:
        if self._in_memory:
            self.memory.check(empty_bytes(config) + memory_bytes(config))
        directory = TableDirectory.create(self._root.tables, config, checked=self._checked)
        try:
            return self._table(directory)
        except BaseException:  # for example, no memory for its index
            shutil.rmtree(directory.hide(), ignore_errors=True)
            raise


def _remove(folder: Path, dropped: list[Table]) -> None:
    """Remove a dropped table's directory, and let go of the table, in a thread.

    Freeing the pages of large files takes long. Python holds its global lock while it unmaps a file, but not while it
    closes one, so the files are kept open until they are unmapped.
    """
    files = []
    with suppress(OSError):  # a lack of descriptors
        files += [os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC) for path in folder.iterdir()]
    shutil.rmtree(folder, ignore_errors=True)
    dropped.clear()
    for file in files:
        os.close(file)


def _fields(table: str, began: float, client: str = "") -> dict[str, object]:
    """Return the log fields of an event that began at ``began``, by the monotonic clock, and has just ended."""
    return {"table": table, "client": client, "duration_s": round(time.monotonic() - began, 6)}


def _full_bytes(config: TableConfig, *, checked: bool) -> int:
    """Bytes of a table when full, including its index."""
    return full_bytes(config, checked=checked) + memory_bytes(config)
