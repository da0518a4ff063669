"""HTTP/2 byte by byte, for what no gRPC client does: bodies held back, streams that are reset at once."""

from __future__ import annotations

import select
import socket
import struct
from types import TracebackType
from typing import Final

from tests.support.deadlines import wait_until

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD: Final = struct.Struct("!BHBBI")
_CANCEL: Final = struct.pack("!I", 8)
_WINDOW: Final = (1 << 31) - 1 - 65535
_PATIENCE_S: Final = 30.0


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    """A frame."""
    return _HEAD.pack(len(content) >> 16, len(content) & 0xFFFF, kind, flags, stream) + content


def header_block(path: str, **more: str) -> bytes:
    """What a gRPC call begins with, without compression; ``more`` are further headers, with _ for -."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers.items())


def message_head(length: int, *, compressed: bool = False) -> bytes:
    """What a gRPC message begins with."""
    return struct.pack("!BI", compressed, length)


def _text(text: str) -> bytes:
    assert len(text) < 127, "a longer text has its length in more than a byte"
    return bytes([len(text)]) + text.encode()


class Connection:
    """A connection that obeys nobody."""

    def __init__(self, port: int) -> None:
        """Connect to this machine, and say hello."""
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self._ended: set[int] = set()
        self._stream = -1
        # The largest window: answers are taken in without limit.
        self._socket.sendall(_PREFACE + frame(SETTINGS, 0, 0) + frame(WINDOW_UPDATE, 0, 0, struct.pack("!I", _WINDOW)))

    def __enter__(self) -> Connection:
        """Close it at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def send(self, content: bytes) -> None:
        """Send frames as they are, and meanwhile answer what has to be answered."""
        self._socket.sendall(content)
        self.take_in()

    def call(self, block: bytes, content: bytes = b"", *, ends: bool = False) -> int:
        """Begin a call, with the beginning of its body; the number of its stream."""
        self._stream += 2
        frames = frame(HEADERS, END_HEADERS, self._stream, block)
        pieces = [content[at : at + 16384] for at in range(0, len(content), 16384)]
        for number, piece in enumerate(pieces, 1):
            frames += frame(DATA, END_STREAM if ends and number == len(pieces) else 0, self._stream, piece)
        self.send(frames)
        return self._stream

    def reset_calls(self, block: bytes, count: int) -> None:
        """Begin so many calls, and give them up right afterwards."""
        streams = range(self._stream + 2, self._stream + 2 + 2 * count, 2)
        self._stream += 2 * count
        self.send(b"".join(frame(HEADERS, END_HEADERS, stream, block) for stream in streams))
        self.send(b"".join(frame(RST_STREAM, 0, stream, _CANCEL) for stream in streams))

    def wait_for_end(self, stream: int) -> None:
        """Return once the server has ended a call."""

        def has_ended() -> bool:
            self.take_in()
            return stream in self._ended

        wait_until(has_ended, "the server has ended the call")

    def take_in(self) -> None:
        """Look at the frames that have come. Pings and settings are acknowledged.

        Raises:
            ConnectionError: the server has hung up.
        """
        while select.select([self._socket], [], [], 0)[0]:
            came = self._socket.recv(1 << 20)
            if not came:
                raise ConnectionError("the server has hung up")
            self._received += came
        while len(self._received) >= _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(self._received)
            end = _HEAD.size + (high << 16 | low)
            if len(self._received) < end:
                break
            content, self._received = self._received[_HEAD.size : end], self._received[end:]
            if kind in (PING, SETTINGS) and not flags & ACK:
                self._socket.sendall(frame(kind, ACK, 0, content if kind == PING else b""))
            if kind == RST_STREAM or (kind in (HEADERS, DATA) and flags & END_STREAM):
                self._ended.add(stream)
