"""A directory belongs to one running server, which says so in an owner record.

    owner = Owner.claim(folder, "--data-dir")       # raises InUseError if another server runs there
    owner.keep()                                    # the heartbeat, in a thread
    owner.check()                                   # raises RequestError if the folder was removed or taken
    owner.release()

The caller holds the folder's lock. The lock alone proves little: on some file systems that machines share, and through
some FUSE mounts, each mount has locks of its own. So an owner that has not ended properly counts as dead only if the
lock was free *and* the record is of this boot and of this very file, seen through the same mounted file system: only
then both servers use the same locks. Any other owner is watched: it runs if its heartbeat changes. Clocks of different
machines are never compared.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import secrets
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from replay_proto.owner import (
    OWNER_FILE,
    OWNER_ID_BYTES,
    RECORD_BYTES,
    FoundRecord,
    OwnerRecord,
    Storage,
    TablesState,
    read_owner,
)

from replay_server import errors
from replay_server.errors import FatalError, StoppedError
from replay_server.files.durable_files import sync_path, write_all
from replay_server.files.mapped_file import tells_full

log = logging.getLogger(__name__)

HEARTBEAT_S: Final = 1.0
"""Seconds between heartbeats."""
WATCH_S: Final = 5.0
"""How long a foreign owner is watched before it counts as dead."""
_LOOK_S: Final = 0.2
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_GET_GENERATION: Final = 0x80087601
"""The ioctl FS_IOC_GETVERSION."""


class InUseError(FatalError):
    """Another server holds the folder."""


class UnsuitableError(FatalError):
    """The file system of a folder, or the machine, lacks something that a server needs; the message names it."""


class Owner:
    """A server's claim to a folder; see the module."""

    def __init__(self, folder: Path, descriptor: int, record: OwnerRecord, *, is_new: bool, doubt: str | None) -> None:
        """Use `claim` instead. ``descriptor`` is the open record."""
        self.folder = folder
        self.id: Final = record.id
        """16 random bytes, drawn at each start."""
        self.is_new: Final = is_new
        """Whether there was no earlier owner, or none that left a record."""
        self.doubt: Final = doubt
        """Why stores of earlier servers may be missing or torn, or None if they are all there. If `is_new`, nothing is
        known about them."""
        self.loss: str | None = None
        """What has happened to the folder if it is no longer this server's. It does not become its own again."""
        self._descriptor = descriptor
        self._record = record
        self._is_recorded = self._has_opened = False
        self._ended = threading.Event()
        self._beating: threading.Thread | None = None
        self._watched: dict[Path, tuple[int, int]] = {}
        self._look_failed = False

    @classmethod
    def claim(cls, folder: Path, flag: str, stopped: threading.Event | None = None) -> Owner:
        """Become the owner of a locked folder. Setting ``stopped`` ends the wait for a foreign owner's heartbeat.

        Raises:
            InUseError: another server runs there; the message names the ``flag`` that selects another folder.
            StoppedError: ``stopped`` was set.
            UnsuitableError: the machine does not tell its boot.
            OSError: the record cannot be created or read.
        """
        boot_id = _boot_id()
        is_new_file = not (folder / OWNER_FILE).exists()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(folder / OWNER_FILE, flags, 0o600)
        try:
            storage, found = storage_of(descriptor), read_owner(folder)
            _refuse_if_running(folder, flag, found, boot_id, storage, stopped or threading.Event())
            doubt = _doubt(found.record, boot_id, storage)
            tables = _tables_now(found.record, doubt)
            record = OwnerRecord(
                *(secrets.token_bytes(OWNER_ID_BYTES), boot_id, os.uname().nodename, os.getpid()),
                is_running=True,
                tables=tables,
                storage=storage,
            )
            owner = cls(folder, descriptor, record, is_new=found.record is None, doubt=doubt)
            owner._write()
        except BaseException:
            os.close(descriptor)
            raise
        if is_new_file:
            sync_path(folder)
        return owner

    def probe(self) -> None:
        """Do with the record what a server does with the files of tables.

        Raises:
            UnsuitableError: the file system does not support it.
        """
        _check_mapping(self.folder, self._descriptor)
        _check_allocation(self.folder, self._descriptor)

    def opened(self) -> None:
        """Record that the tables are consistent, before they change."""
        self._record = replace(self._record, tables="stored")
        self._has_opened = True
        self._write()

    def synced(self) -> None:
        """Note that all tables are on disk, and do not change any more. `release` records it.

        A start that failed before `opened` knows nothing of the tables that an earlier server left.
        """
        if self._has_opened and self._record.tables == "stored":
            self._record = replace(self._record, tables="synced")

    def watch(self, path: Path) -> None:
        """Also count the folder as lost if ``path`` is removed or replaced."""
        status = path.stat()
        self._watched[path] = (status.st_dev, status.st_ino)

    def keep(self) -> None:
        """Start the heartbeat, which also finds out whether the folder is still this server's."""
        self._beating = threading.Thread(target=self._beat, name=f"owner of {self.folder}", daemon=True)
        self._beating.start()

    def look(self) -> None:
        """Find out now whether the folder is still this server's.

        A folder that was away may come back, for example with its mount: if it has this server's own record, no other
        server has used it meanwhile.
        """
        if self._ended.is_set():
            return
        before = self.loss
        try:
            self.loss = self._lost()
        except OSError as error:
            if not self._look_failed:
                log.warning("cannot tell whether %s is still there: %s", self.folder, error)
            self._look_failed = True
        if self.loss is not None and before is None:
            log.error(
                "%s: what it stores from now on would be lost, so it refuses to; bring it back, or restart the server",
                self.loss,
            )
        elif self.loss is None and before is not None:
            log.warning("%s is back", self.folder)

    def check(self) -> None:
        """Check that the folder is still this server's, as far as the last look told; costs nothing.

        Raises:
            RequestError: STORAGE_LOST.
        """
        if self.loss is not None:
            raise errors.storage_lost(self.folder, self.loss)

    def end(self) -> None:
        """End the heartbeat, without recording it. From now on, `look` finds nothing."""
        self._ended.set()
        if self._beating is not None:
            self._beating.join()

    def file_system(self) -> os.statvfs_result:
        """Size and free space of the folder's file system, even if the folder was removed."""
        return os.fstatvfs(self._descriptor)

    def release(self) -> None:
        """End the heartbeat, and record the end."""
        self.look()
        self.end()
        try:
            if self.loss is None and self._is_recorded:
                self._record = replace(self._record, is_running=False)
                self._write()
        except OSError as error:  # the next server finds a record of a server that was killed
            log.warning("%s: cannot record the end of the server: %s", self.folder / OWNER_FILE, error)
        finally:
            os.close(self._descriptor)

    def _write(self) -> None:
        try:
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            write_all(self._descriptor, self._record.to_bytes())
            os.fsync(self._descriptor)
        except OSError as error:
            # Remove the earlier record: it may say that everything is on disk.
            os.ftruncate(self._descriptor, 0)
            self._is_recorded = False
            if not tells_full(error):
                raise
            log.warning(
                "%s: no space to record that tables are open; after a reboot they count as torn",
                self.folder / OWNER_FILE,
            )
            return
        self._is_recorded = True

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            try:
                os.utime(self._descriptor)
            except OSError as error:
                if not self._look_failed:
                    log.warning("%s: no heartbeat: %s", self.folder / OWNER_FILE, error)
                self._look_failed = True
            self.look()

    def _lost(self) -> str | None:
        try:
            found = read_owner(self.folder)
            for path, identity in self._watched.items():
                status = path.stat()
                if (status.st_dev, status.st_ino) != identity:
                    return f"{path} was replaced while this server ran"
        except (FileNotFoundError, NotADirectoryError) as error:
            return f"{error.filename} was removed while this server ran"
        if (found.device, found.inode) != self._record.storage[:2]:
            return f"{self.folder} was replaced while this server ran"
        if self._is_recorded and found.record is not None and found.record.id != self.id:
            return f"{self.folder} was taken by {_name(found.record)}"
        return None


def storage_of(descriptor: int) -> Storage:
    """Identify an open file."""
    status = os.fstat(descriptor)
    try:
        (generation,) = struct.unpack("=I4x", fcntl.ioctl(descriptor, _GET_GENERATION, bytes(8)))
    except OSError:  # not supported by this file system
        generation = 0
    return Storage(status.st_dev, status.st_ino, generation, os.fstatvfs(descriptor).f_fsid)


def left_since(folder: Path) -> Literal["this boot", "an earlier boot"] | None:
    """Say when a folder, whose lock the caller has just taken, was left behind.

    Returns:
        ``this boot``: its server is dead. ``an earlier boot``: the same, unless another machine has this one's name
        and uses the same storage. None: nobody can tell here whether its server runs.
    """
    try:
        descriptor = os.open(folder / OWNER_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        record, storage = OwnerRecord.from_bytes(os.pread(descriptor, RECORD_BYTES, 0)), storage_of(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    if record is None:
        return None
    if record.boot_id == _boot_id():
        return "this boot" if record.storage == storage else None
    # The number of a mounted file system may change when the machine starts again.
    is_same = record.host == os.uname().nodename and record.storage[1:] == storage[1:]
    return "an earlier boot" if is_same else None


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError as error:
        raise UnsuitableError(
            f"{_BOOT_ID}: expected the id of this boot of the machine, got {error.strerror}; without it, a server "
            "cannot tell whether the machine went down while tables were open. Run it where /proc is mounted"
        ) from error


def _shares_locks(record: OwnerRecord | None, boot_id: str, storage: Storage) -> bool:
    """Whether the owner's locks are of the same kernel and the same mounted file system as this server's."""
    return record is not None and record.boot_id == boot_id and record.storage == storage


def _refuse_if_running(
    folder: Path, flag: str, found: FoundRecord, boot_id: str, storage: Storage, stopped: threading.Event
) -> None:
    record = found.record
    if record is None or not record.is_running or _shares_locks(record, boot_id, storage):
        return
    log.info(
        "%s belongs to %s, which did not end properly, or still runs: watching its heartbeat for %g s",
        *(folder, _name(record), WATCH_S),
    )
    if _changes(lambda: read_owner(folder), found, stopped):
        raise InUseError(
            f"{folder} is in use by {_name(record)}: its heartbeat changes, although this server can lock the "
            f"directory; stop it, or choose another {flag}"
        )


def _changes(read: Callable[[], FoundRecord], first: FoundRecord, stopped: threading.Event) -> bool:
    ends = time.monotonic() + WATCH_S
    while time.monotonic() < ends:
        if stopped.wait(_LOOK_S):
            raise StoppedError("watching the heartbeat of another server")
        now = read()
        if (now.heartbeat_ns, now.record) != (first.heartbeat_ns, first.record):
            return True
    return False


def _doubt(record: OwnerRecord | None, boot_id: str, storage: Storage) -> str | None:
    """Say why stores of the last server may be missing or torn; None if they are all there."""
    if record is None:
        return "no record of its last server is left"
    if record.storage[1:] != storage[1:] or (record.boot_id == boot_id and record.storage != storage):
        return "its directory was copied, or moved to other storage, perhaps while a server had it open"
    if record.tables == "unverified":
        return "an earlier start that was to verify it did not end"
    if record.boot_id != boot_id and record.tables != "synced":
        return "the machine went down while a server had it open"
    return None


def _tables_now(record: OwnerRecord | None, doubt: str | None) -> TablesState:
    return "unverified" if record is None or doubt is not None else record.tables


def _check_mapping(folder: Path, descriptor: int) -> None:
    if os.fstat(descriptor).st_size < RECORD_BYTES:  # the disk is full
        return
    try:
        mmap.mmap(descriptor, RECORD_BYTES).close()
    except OSError as error:
        raise UnsuitableError(
            f"{folder}: expected a file system whose files can be mapped into shared memory (mmap), got "
            f"{error.strerror!r}; choose another directory"
        ) from error


def _check_allocation(folder: Path, descriptor: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, RECORD_BYTES)
    except OSError as error:
        if tells_full(error):
            return
        raise UnsuitableError(
            f"{folder}: expected a file system that can reserve space for files (posix_fallocate), got "
            f"{error.strerror!r}; choose another directory"
        ) from error


def _name(record: OwnerRecord) -> str:
    return f"the server with process {record.process} on {record.host}"
