"""Calls to a server on this host over its unix-domain socket."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Final

from replay_proto.v1 import replay_pb2

from replay_client.description import TableDescription
from replay_client.frame_calls import FrameCalls, NobodyThereError

_RETRY_S: Final = 1.0


class LocalSocket(FrameCalls):
    """The way to one table on the server's host."""

    def __init__(self, table: TableDescription, nonce: bytes, authorization: str = "") -> None:
        """Know where to go.

        Args:
            table: the table.
            nonce: what the file in its directory holds.
            authorization: says who calls, where the server wants to know.
        """
        hello = replay_pb2.FrameHello(table=table.name, table_uid=table.uid, nonce=nonce, authorization=authorization)
        super().__init__(hello, _RETRY_S)
        self._path = Path(table.socket)

    def _connect(self, deadline: float) -> socket.socket:
        """Connect to a socket whose path may be longer than a socket's address."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            link.settimeout(max(0.0, deadline - time.monotonic()))
            folder = os.open(self._path.parent, os.O_PATH | os.O_CLOEXEC)
            try:
                link.connect(f"/proc/self/fd/{folder}/{self._path.name}")
            finally:
                os.close(folder)
        except (FileNotFoundError, ConnectionRefusedError):
            # It costs next to nothing to see that, and a server that came back is found at once.
            link.close()
            raise NobodyThereError from None
        except BaseException:
            link.close()
            raise
        return link
