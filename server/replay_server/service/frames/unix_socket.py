"""A unix-domain socket for clients on this host: who can read a table's directory may call."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import socket
import stat
from pathlib import Path
from typing import Final

from replay_proto.errors import FieldError
from replay_proto.v1 import replay_pb2

from replay_server import errors
from replay_server.catalog import Catalog
from replay_server.service.frames.serving import FrameListener, Handlers

log = logging.getLogger(__name__)

SOCKET_NAME: Final = ".socket"
"""In the folder of the tables; no table has such a name."""
_PRIVATE: Final = 0o600
_SHARED: Final = 0o660
"""Modes of the socket, for a folder of the user's own and for one that a group may read."""


class UnixSocket(FrameListener):
    """Listens on a unix-domain socket in the server's own directory."""

    def __init__(self, catalog: Catalog, handlers: Handlers) -> None:
        """See `FrameListener`."""
        super().__init__(catalog, handlers)
        self._server: asyncio.Server | None = None
        self._path: Path | None = None

    async def start(self, path: Path) -> None:
        """Listen, if that can be done there: where not, clients make all their calls over gRPC."""
        try:
            path.unlink(missing_ok=True)  # of a server that was killed; the directory's lock is ours
            listener = _bound(path)
        except OSError as error:
            log.warning("no calls without gRPC: cannot listen on %s: %s", path, error)
            return
        self._path = path
        self._server = await asyncio.get_running_loop().create_unix_server(self._connection, sock=listener)

    def _close_listeners(self) -> None:
        if self._server is not None and self._path is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    def _admit(self, hello: replay_pb2.FrameHello) -> None:
        table = self._catalog.find(hello.table, hello.table_uid)
        if not hmac.compare_digest(hello.nonce, table.directory.nonce):
            raise errors.invalid_field(FieldError("nonce", "what the table's file holds", "something else"))


def _bound(path: Path) -> socket.socket:
    """A socket in a directory whose path may be longer than a socket's address."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        # Who gets into the folder may connect.
        path.chmod(_SHARED if path.parent.stat().st_mode & stat.S_IXGRP else _PRIVATE)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(folder)
    return listener
