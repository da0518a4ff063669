"""A TCP proxy that simulates a faulty network: it delays, drops and resets connections."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from types import TracebackType

_PIECE_BYTES = 1 << 16
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER option: closing sends a reset instead of an orderly shutdown."""


class Proxy:
    """Forwards connections to a server, with injected faults."""

    def __init__(self, port: int) -> None:
        """Listen, and forward to a server at this port of the machine."""
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._passing = threading.Event()
        self._passing.set()
        self.delay_s = 0.0
        """How long every piece of data is held back, in both directions."""
        self.refuses = False
        """Whether new connections are reset."""
        self.connections = 0
        """Total connections forwarded."""
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """Its address."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def reset(self) -> None:
        """Reset every connection, and drop data in flight."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def cut(self) -> None:
        """Silently hold back all data."""
        self._passing.clear()

    def repair(self) -> None:
        """Forward everything again, held-back data first."""
        self._passing.set()

    def close(self) -> None:
        """Reset all connections, and stop listening."""
        self.refuses = True
        self.repair()
        self._listener.close()
        self.reset()

    def __enter__(self) -> Proxy:
        """Return this proxy, for a ``with`` block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the proxy."""
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._forward(client)

    def _forward(self, client: socket.socket) -> None:
        server = None
        if not self.refuses:
            with contextlib.suppress(OSError):
                server = socket.create_connection(("127.0.0.1", self._port))
        if server is None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            client.close()
            return
        self.connections += 1
        self._pairs.append((client, server))
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE_BYTES):
                time.sleep(self.delay_s)
                self._passing.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
