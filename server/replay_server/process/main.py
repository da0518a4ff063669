"""Runs `replay-server`: restores tables, and serves until stopped."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import uvloop
from replay_proto.access.certificates import RENEWAL_S, ServerCertificates
from replay_proto.access.exposure import is_loopback
from replay_proto.access.watched import UnusableFileError
from replay_proto.channels import host_and_port
from replay_proto.child_process import when_parent_dies
from replay_proto.command_line import discard_output
from replay_proto.errors import FieldError

from replay_server import __version__
from replay_server.auth import Authenticator
from replay_server.catalog import Catalog
from replay_server.checkpoint.reading import restore, resume
from replay_server.checkpoint.store import Checkpoints
from replay_server.errors import FatalError, RequestError, StoppedError
from replay_server.files import trust
from replay_server.files.standard_error import STANDARD_ERROR
from replay_server.flow.background import Background
from replay_server.http.view import View
from replay_server.process.garbage import RareCollections, loading
from replay_server.process.server import ReplayServer
from replay_server.process.settings import ServerSettings
from replay_server.process.syncing import Syncer
from replay_server.process.warming import warm_up
from replay_server.rpc.local_socket.listener import SOCKET_NAME
from replay_server.storage.permissions import GROUP_UMASK, UMASK, keep_private, share_with_group
from replay_server.storage.restored_tables import settle
from replay_server.storage.root import Root

T = TypeVar("T")

log = logging.getLogger("replay_server")

_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENAS = -3, -1, -8
"""Parameters of glibc's `mallopt`."""
_KEPT_BLOCK_BYTES = 32 << 20
_KEPT_BYTES = 64 << 20
_SMALL_BYTES = 256 << 20
"""A place for tables in memory that is smaller than this is warned of: Docker gives a container 64 MB."""


def run(settings: ServerSettings) -> None:
    """Run the server until SIGTERM or SIGINT.

    Exits with status 1 if the server cannot start, or cannot sync its tables at shutdown.
    """
    _allow_many_files()  # a table needs two descriptors per file
    _tune_allocator()
    try:
        uvloop.run(serve(settings))
    except (FatalError, UnusableFileError, OSError) as error:
        log.error("%s", settings.explained(error))
        sys.exit(1)


async def serve(settings: ServerSettings) -> None:
    """Serve until a signal stops the server or, with ``exit_with_parent``, until the parent process ends.

    Raises:
        FatalError: if the server cannot start, or cannot sync its tables at shutdown.
        UnusableFileError: if the tokens or certificates cannot be used.
    """
    stop = _stop_event(settings)
    authenticator, certificates = Authenticator(settings.tokens), _certificates(settings)
    os.umask(UMASK if settings.group is None else GROUP_UMASK)
    try:
        async with AsyncExitStack() as parts:
            await _serve(settings, authenticator, certificates, stop, parts)
    except StoppedError as work:
        log.info("stopped while %s", work)
    log.info("stopped")


async def _serve(
    settings: ServerSettings,
    authenticator: Authenticator,
    certificates: ServerCertificates | None,
    stop: asyncio.Event,
    parts: AsyncExitStack,
) -> None:
    """Start one part after another, and serve until ``stop`` is set. ``parts`` then ends them, the last one first."""
    root = await _in_thread(stop, partial(_root, settings))
    parts.callback(root.close)
    root.owner.keep()
    checked = settings.durability == "power"
    catalog = Catalog(root, settings.bounds(), checked=checked)
    parts.callback(catalog.close)
    at_rest = await parts.enter_async_context(AsyncExitStack())  # ended when no table changes any more
    parts.push_async_callback(catalog.inserts_ended)
    keep_private(root) if settings.group is None else share_with_group(root, settings.group)
    checkpoints: Checkpoints | None = None
    if settings.checkpoint_dir is not None:
        checkpoints = await _in_thread(stop, partial(_checkpoints, settings, catalog))
        parts.push_async_callback(checkpoints.close)
    socket = root.tables / SOCKET_NAME if settings.same_host else None
    server = ReplayServer(catalog, settings, socket=socket, authenticator=authenticator, checkpoints=checkpoints)
    # Bind first: if the port is in use, nothing has been created or changed yet.
    port = server.lanes.bind(settings.host, settings.port, None if certificates is None else certificates.credentials)
    server.connections.port = port
    background = Background()
    view = View(catalog, server.endpoints, background, server.connections)
    await parts.enter_async_context(_http(view, checkpoints, authenticator, certificates, settings))
    parts.push_async_callback(background.stop)
    with loading():
        await _in_thread(stop, warm_up)
    await _in_thread(stop, partial(_open_tables, catalog, root, settings))
    # Existing tables keep their checksums, whatever the current setting.
    if checked or any(table.directory.is_checked for table in catalog):
        at_rest.push_async_callback(Syncer(catalog, settings.sync_every, background).close)
    await _make_tables(catalog, settings)
    await server.start()
    settle(root.tables)
    view.state = "ready"
    log.info("version %s, tables in %s", __version__, root.path)
    await _announce(settings.host, port)
    collections = RareCollections(server.unfinished.open_calls)
    _repeat_all(settings, server, checkpoints, background, collections)
    await stop.wait()
    view.state = "stopping"
    log.info("stopping")
    await background.stop("garbage collection", "periodic checkpoint")
    collections.close()
    await server.stop(settings.drain_s)


def _stop_event(settings: ServerSettings) -> asyncio.Event:
    """Return an event that signals set or, with ``exit_with_parent``, the end of the parent process."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if settings.exit_with_parent:
        _stop_with_parent(stop)
    return stop


def _repeat_all(
    settings: ServerSettings,
    server: ReplayServer,
    checkpoints: Checkpoints | None,
    background: Background,
    collections: RareCollections,
) -> None:
    """Begin what a server does again and again beside its calls."""
    background.repeat("garbage collection", collections.collect)
    background.repeat("unfinished messages", server.unfinished.look)
    if server.health is not None:
        background.repeat("health service", server.health.look)
    if checkpoints is not None and settings.checkpoint_every is not None:
        background.repeat("periodic checkpoint", partial(checkpoints.create_after, settings.checkpoint_every))


async def _announce(host: str, port: int) -> None:
    """Say on standard output that the server is ready, after all that it has logged until now."""
    await asyncio.to_thread(STANDARD_ERROR.drain)
    try:
        print(f"replay-server listening on {host_and_port(host, port)}", flush=True)
    except OSError as error:
        log.warning("standard output cannot be written to: %s", error)
        discard_output()


async def _in_thread(stop: asyncio.Event, work: Callable[[threading.Event], T]) -> T:
    """Do work that takes long in a thread, so that signals and probes are answered meanwhile.

    The work gets an event that tells it to end early, with a `StoppedError`, once ``stop`` is set.
    """
    stopped = threading.Event()
    working = asyncio.create_task(asyncio.to_thread(work, stopped))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    stopped.set()
    return await working


def _open_tables(catalog: Catalog, root: Root, settings: ServerSettings, stopped: threading.Event) -> None:
    """Restore a checkpoint, if the settings name one, and open all tables."""
    root.owner.look()  # another server may have claimed the directory at the same moment
    if root.owner.loss is not None:
        raise FatalError(root.owner.loss)
    restored = resume(root.tables)
    if settings.restore is not None:
        checked = settings.durability == "power"
        restored = restore(settings.restore, root.tables, checked=checked, stopped=stopped, memory=catalog.memory)
        log.info("%s restored: %d tables", settings.restore, len(restored.tables))
    if restored is not None and restored.shards is not None and catalog.shards.current is None:
        catalog.shards.replace(restored.shards)
    catalog.open_tables(stopped, [] if restored is None else [table.config.name for table in restored.tables])


def _root(settings: ServerSettings, stopped: threading.Event) -> Root:
    if settings.data_dir is None:
        root = _in_directory(settings, "memory_dir", trust.check_folder, Root.in_memory)
        _warn_if_small(settings.memory_dir)
        return root
    return _in_directory(settings, "data_dir", Root.check_durable, partial(Root.durable, stopped=stopped))


def _checkpoints(settings: ServerSettings, catalog: Catalog, stopped: threading.Event) -> Checkpoints:
    use = partial(Checkpoints, catalog, keep=settings.keep_checkpoints, stopped=stopped)
    return _in_directory(settings, "checkpoint_dir", Checkpoints.check, use)


def _warn_if_small(memory_dir: Path) -> None:
    there = os.statvfs(memory_dir)
    size = there.f_blocks * there.f_frsize
    if size < _SMALL_BYTES:
        log.warning(
            "%s has %d MiB in all, so tables in memory cannot be larger together; choose another --memory-dir or "
            "--data-dir, or in a container start it with more, such as docker run --shm-size 8g",
            *(memory_dir, size >> 20),
        )


def _in_directory(settings: ServerSettings, setting: str, check: Callable[[Path], None], use: Callable[[Path], T]) -> T:
    """Check the directory that a setting names, and return the result of calling ``use`` with it.

    Raises:
        FatalError: if the directory cannot be used, or if another user can change its contents and ``trust_dirs`` is
            not set.
    """
    path: Path = getattr(settings, setting)
    try:
        try:
            check(path)
        except trust.UntrustedError as error:
            if not settings.trust_dirs:
                raise FatalError(
                    f"{setting}: {error}; where there are no other users, as in a container, pass --trust-dirs to skip "
                    "this check"
                ) from error
            log.warning("%s: %s", setting, error)
        return use(path)
    except OSError as error:
        raise FatalError(f"{setting}: expected a writable directory, got {str(path)!r}: {error.strerror}") from error


@asynccontextmanager
async def _http(
    view: View,
    checkpoints: Checkpoints | None,
    authenticator: Authenticator,
    certificates: ServerCertificates | None,
    settings: ServerSettings,
) -> AsyncIterator[None]:
    """Serve the HTTP port, if it is enabled, inside the block."""
    if settings.http_port is None:
        yield
        return
    # Imported here because most servers have no HTTP port, and this takes 0.3 s.
    from replay_server.http.feed import Feed
    from replay_server.http.live_page import LONGEST_S, LivePage
    from replay_server.http.routes import Routes
    from replay_server.http.serving import HttpServer, Readers

    feed = Feed(view, checkpoints)
    readers = Readers(authenticator, on_this_host=settings.tokens is None and is_loopback(settings.http_host))
    page = LivePage(feed, readers, min(LONGEST_S, settings.max_connection_s))
    context = None if certificates is None else certificates.ssl_context()
    served = HttpServer(Routes(view, readers, page).app(), settings.http_host, settings.http_port, context)
    served.start(view.background)
    view.background.repeat("live page", feed.go_on)
    url = f"{'http' if context is None else 'https'}://{host_and_port(settings.http_host, served.port)}"
    log.info("live page at %s/, metrics at %s/metrics", url, url)
    try:
        yield
    finally:
        await served.stop()


def _certificates(settings: ServerSettings) -> ServerCertificates | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    # Resumed TLS sessions and existing connections present no certificate, so both are limited by this setting.
    renewal_s = min(RENEWAL_S, settings.max_connection_s)
    return ServerCertificates(settings.tls_cert, settings.tls_key, settings.tls_client_ca, renewal_s)


async def _make_tables(catalog: Catalog, settings: ServerSettings) -> None:
    for wanted in settings.tables:
        try:
            await catalog.create(wanted.to_config())
        except (FieldError, RequestError) as error:
            raise FatalError(f"table {wanted.name!r} of {settings.config}: {error}") from error


def _stop_with_parent(stop: asyncio.Event) -> None:
    """Set ``stop`` when the parent process dies, or closes standard input."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        with suppress(RuntimeError):  # the server has already ended for another reason
            loop.call_soon_threadsafe(stop.set)

    when_parent_dies(end)


def _allow_many_files() -> None:
    """Raise this process's limit on file descriptors as far as allowed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _tune_allocator() -> None:
    """Make malloc keep large freed blocks, and use one heap for all threads. Call this before starting threads.

    Freed blocks of up to 32 MiB, at most 64 MiB in total, are reused instead of being returned to the kernel, because
    each new page costs a page fault. Otherwise, a message of 4 MiB, which gRPC copies twice, would block the event loop
    for 7 ms, 6 of them in page faults.

    If each thread had its own heap, each of gRPC's threads would keep the memory of its largest burst of calls, tens of
    MB in total.

    Does nothing if the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _KEPT_BLOCK_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_ARENAS, 1)
