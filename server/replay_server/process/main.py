"""Runs `replay-server`: restores tables, and serves until stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import uvloop
from replay_proto.access.certificates import RENEWAL_S, ServerCertificates
from replay_proto.access.watched import UnusableFileError
from replay_proto.errors import FieldError

from replay_server import __version__
from replay_server.auth.caller import Authenticator
from replay_server.catalog import Catalog, NotWrittenError
from replay_server.checkpoint.manifest import CheckpointRemovedError, DamagedCheckpointError
from replay_server.checkpoint.reading import RestoreError, restore
from replay_server.checkpoint.store import Checkpoints, CheckpointsInUseError
from replay_server.errors import RequestError
from replay_server.files import trust
from replay_server.process.allocation import tune_allocator
from replay_server.process.loading import loading
from replay_server.process.server import BindError, ReplayServer
from replay_server.process.settings import ServerSettings
from replay_server.process.syncing import Syncer
from replay_server.process.warming import WarmUpCancelledError, warm_up
from replay_server.rpc.local_socket.listener import SOCKET_NAME
from replay_server.rpc.over_grpc.lanes import Credentials
from replay_server.storage.permissions import GROUP_UMASK, UMASK, GroupError, keep_private, share_with_group
from replay_server.storage.root import Root, RootInUseError
from replay_server.storage.table_directory import DamagedTableError

T = TypeVar("T")

log = logging.getLogger("replay_server")


class StartError(Exception):
    """The server cannot start with these settings; the message says why."""


REFUSALS_TO_START = (
    StartError,
    BindError,
    UnusableFileError,
    GroupError,
    RootInUseError,
    DamagedTableError,
    CheckpointsInUseError,
    DamagedCheckpointError,
    CheckpointRemovedError,
    RestoreError,
    OSError,
)


def run(settings: ServerSettings) -> None:
    """Run the server until SIGTERM or SIGINT.

    Exits with 1 if it cannot start, or cannot sync its tables at the end.
    """
    _allow_many_files()
    tune_allocator()
    try:
        uvloop.run(serve(settings))
    except (*REFUSALS_TO_START, NotWrittenError) as error:
        log.error("%s", error)
        sys.exit(1)


async def serve(settings: ServerSettings) -> None:
    """Serve until told to stop.

    Raises:
        StartError: a table of the config file cannot be created.
        BindError: the server cannot listen on the address.
        UnusableFileError: the tokens or certificates cannot be used.
        GroupError: the group cannot be given access to the files.
        RootInUseError: if another server has the data directory.
        DamagedTableError: if a stored table cannot be read.
        CheckpointsInUseError: another server uses the checkpoint directory.
        DamagedCheckpointError: if the checkpoint to restore cannot be read.
        CheckpointRemovedError: if the checkpoint to restore is removed meanwhile.
        RestoreError: the checkpoint to restore has tables that already exist.
        NotWrittenError: the tables could not be synced at the end.
    """
    stop = asyncio.Event()
    _stop_on_signals(stop)
    if settings.exit_with_parent:
        _stop_with_parent(stop)
    authenticator, credentials = Authenticator(settings.tokens), _credentials(settings)
    os.umask(UMASK if settings.group is None else GROUP_UMASK)
    root = _root(settings)
    checked = settings.durability == "power"
    catalog = Catalog(root, settings.bounds(), checked=checked)
    syncer: Syncer | None = None
    checkpoints: Checkpoints | None = None
    try:
        keep_private(root) if settings.group is None else share_with_group(root, settings.group)
        checkpoints = _checkpoints(catalog, settings)
        server = ReplayServer(
            catalog,
            keepalive_s=settings.keepalive_s,
            connection_s=settings.max_connection_s if settings.tls_client_ca is not None else None,
            offer_reflection=settings.reflection,
            socket=root.tables / SOCKET_NAME if settings.same_host else None,
            offer_health=settings.health,
            authenticator=authenticator,
            credentials=credentials,
            checkpoints=checkpoints,
        )
        # First of all, so that a port in use is detected before anything changes.
        port = server.bind(settings.host, settings.port)
        if not await _warm_up(stop):
            return
        if settings.restore is not None:
            restored = restore(settings.restore, root.tables, checked=checked)
            log.info("%s restored: %d tables", settings.restore, len(restored.tables))
        catalog.restore()
        # Existing tables keep their checksums, whatever the current setting.
        if checked or any(table.directory.is_checked for table in catalog):
            syncer = Syncer(catalog, settings.sync_every)
        await _make_tables(catalog, settings)
        await server.start()
        log.info("version %s, tables in %s", __version__, root.path)
        print(f"replay-server listening on {settings.host}:{port}", flush=True)
        periodic = _periodic_checkpoints(checkpoints, settings.checkpoint_every)
        await stop.wait()
        log.info("stopping")
        if periodic is not None:
            periodic.cancel()
        await server.stop(settings.drain_s)
    finally:
        try:
            await catalog.inserts_ended()
            if checkpoints is not None:
                await checkpoints.close()
            if syncer is not None:
                await syncer.close()
        finally:
            _let_go_of(catalog, root)
    log.info("stopped")


async def _warm_up(stop: asyncio.Event) -> bool:
    """Compile or load kernels before opening tables, and exclude them from garbage collection.

    Returns:
        False if the server was told to stop meanwhile.
    """
    cancelled = threading.Event()
    with loading():
        warming = asyncio.create_task(asyncio.to_thread(warm_up, cancelled))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((warming, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        cancelled.set()
        try:
            await warming
        except WarmUpCancelledError:
            log.info("stopped while compiling kernels")
            return False
    return True


def _let_go_of(catalog: Catalog, root: Root) -> None:
    """Sync and close the tables.

    Raises:
        NotWrittenError: some tables could not be synced.
    """
    try:
        catalog.close()
    finally:
        root.close()


def _root(settings: ServerSettings) -> Root:
    """Open the directory of the tables.

    Raises:
        StartError: the directory cannot be used.
        RootInUseError: if another server has the data directory.
    """
    if settings.data_dir is None:
        return _in_directory("memory_dir", settings.memory_dir, trust.check_folder, Root.in_memory, settings.trust_dirs)
    return _in_directory("data_dir", settings.data_dir, Root.check_durable, Root.durable, settings.trust_dirs)


def _checkpoints(catalog: Catalog, settings: ServerSettings) -> Checkpoints | None:
    """Open the directory of the checkpoints.

    Raises:
        StartError: the directory cannot be used.
        CheckpointsInUseError: if another server has the directory.
    """
    if settings.checkpoint_dir is None:
        return None
    return _in_directory(
        "checkpoint_dir",
        settings.checkpoint_dir,
        Checkpoints.check,
        lambda path: Checkpoints(catalog, path, settings.keep_checkpoints),
        settings.trust_dirs,
    )


def _in_directory(
    setting: str, path: Path, check: Callable[[Path], None], use: Callable[[Path], T], trust_dirs: bool
) -> T:
    """Check a directory before it is used.

    Raises:
        StartError: it cannot be used, or another user can change its content and ``trust_dirs`` is not set.
    """
    try:
        try:
            check(path)
        except trust.UntrustedError as error:
            if not trust_dirs:
                raise StartError(
                    f"{setting}: {error}; where there are no "
                    "other users, as in a "
                    "container, pass --trust-dirs to skip this check"
                ) from error
            log.warning("%s: %s", setting, error)
        return use(path)
    except OSError as error:
        raise StartError(f"{setting}: expected a writable directory, got {str(path)!r}: {error.strerror}") from error


def _credentials(settings: ServerSettings) -> Credentials | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    # A resumed session shows no certificate, like an existing connection.
    renewal_s = min(RENEWAL_S, settings.max_connection_s)
    return ServerCertificates(settings.tls_cert, settings.tls_key, settings.tls_client_ca, renewal_s).credentials


async def _make_tables(catalog: Catalog, settings: ServerSettings) -> None:
    for wanted in settings.tables:
        try:
            await catalog.create(wanted.to_config())
        except (FieldError, RequestError) as error:
            raise StartError(f"table {wanted.name!r} of {settings.config}: {error}") from error


def _periodic_checkpoints(checkpoints: Checkpoints | None, every_s: float | None) -> asyncio.Task[None] | None:
    if checkpoints is None or every_s is None:
        return None
    return asyncio.create_task(checkpoints.create_every(every_s), name="periodic-checkpoints")


def _stop_on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


def _stop_with_parent(stop: asyncio.Event) -> None:
    """Stop when standard input ends, because the parent process has exited or died."""
    loop = asyncio.get_running_loop()

    def watch(told: Callable[[], object]) -> None:
        # Avoid sys.stdin: this thread never ends, and holding its lock would break the interpreter's shutdown.
        while os.read(sys.stdin.fileno(), 1):
            pass
        with suppress(RuntimeError):  # the server has already stopped for another reason
            told()

    # A daemon thread, so that the server can stop for other reasons.
    threading.Thread(
        target=watch, args=(lambda: loop.call_soon_threadsafe(stop.set),), name="parent-watch", daemon=True
    ).start()


def _allow_many_files() -> None:
    """Raise the limit on file descriptors as far as allowed: a table needs two per file."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
