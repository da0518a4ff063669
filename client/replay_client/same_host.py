"""What a client gains when it shares a host with the server: rows copied out of the server's files, calls without gRPC.

The server names a table's directory and a socket. Whoever can read the nonce in that directory is on the same host and
may use both.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from replay_proto.layout import NONCE_BYTES, NONCE_FILE

from replay_client.description import TableDescription
from replay_client.local import LocalSocket, LocalStream
from replay_client.mapped_rows import MappedRows

_ORDERED_LOADS: Final = ("x86_64", "AMD64")
"""Machines, as Python names them, whose memory order the check of a copy of rows relies on."""


@dataclass(frozen=True)
class SameHost:
    """The short ways to one table; without any of them, everything goes over gRPC."""

    rows: MappedRows | None = None
    """Copies the rows of batches."""
    socket: LocalSocket | None = None
    """Makes the calls of a learner."""

    @classmethod
    def find(cls, table: TableDescription, authorization: str = "") -> SameHost:
        """What there is, if the server offers it, this is its host, and we may read the table's directory."""
        try:
            nonce = (Path(table.directory) / NONCE_FILE).read_bytes() if table.directory else b""
            if len(nonce) != NONCE_BYTES:
                return cls()
            rows = MappedRows(table, nonce) if platform.machine() in _ORDERED_LOADS else None
        except OSError:
            return cls()
        return cls(rows, LocalSocket(table, nonce, authorization) if table.socket else None)

    def open_learn_stream(self) -> LocalStream | None:
        """A learner's stream over the socket, if there is one and somebody answers."""
        return None if self.socket is None else self.socket.open_stream("Learn")
