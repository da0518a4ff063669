"""HTTP/2 unlike any gRPC client: frames in any order, withheld bodies, unread replies."""

from __future__ import annotations

import select
import socket
import ssl
import struct
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, Event, StreamEnded, StreamReset
from h2.exceptions import ProtocolError
from hpack import Encoder, NeverIndexedHeaderTuple
from hyperframe.frame import Frame, HeadersFrame

GRPC_HEAD: Final = struct.Struct(">BI")
"""Before each message: whether it is compressed, and its length."""
_READ_BYTES: Final = 1 << 18
_SENDING_S: Final = 10.0
Headers = Sequence[tuple[str, str]]


def headers_of(path: str, metadata: Headers = ()) -> list[tuple[str, str]]:
    """First bytes of a gRPC call."""
    return [
        (":method", "POST"),
        (":scheme", "https"),
        (":path", path),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *metadata,
    ]


class Http2:
    """A valid HTTP/2 connection, with calls of any duration."""

    def __init__(self, link: socket.socket) -> None:
        """Speak on a connection, and close it at the end."""
        self._socket = link
        self._rules = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.ended: set[int] = set()
        """Calls that the server ended or answered."""
        self.is_over = False
        """Whether the server ended the connection."""
        self._rules.initiate_connection()
        self._flush()

    def __enter__(self) -> Http2:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def begin(self, path: str, metadata: Headers = (), *, is_whole: bool = False) -> int:
        """Begin a call; return its stream id."""
        number = self._rules.get_next_available_stream_id()
        self._rules.send_headers(number, headers_of(path, metadata), end_stream=is_whole)
        self._flush()
        return number

    def call(self, path: str, message: bytes, metadata: Headers = ()) -> int:
        """Begin a call with a complete request, without waiting for the reply."""
        number = self.begin(path, metadata)
        self.send(number, GRPC_HEAD.pack(0, len(message)) + message, is_last=True)
        return number

    def wait_for_end(self, call: int, patience_s: float = _SENDING_S) -> None:
        """Receive data until the server has ended a call.

        Raises:
            AssertionError: nothing arrived in time.
        """
        while not self.has_ended(call):
            assert self.read(patience_s), "the server says nothing"

    def send(self, call: int, data: bytes, *, is_last: bool = False, patience_s: float = 10.0) -> bool:
        """Send part of a call's body as fast as flow control allows; False if the server has ended the call."""
        view = memoryview(data)
        while view and not self.has_ended(call):
            count = self.push(call, view, is_last=is_last)
            if not count and not self.read(patience_s):
                return False
            view = view[count:]
            self.read(0.0)
        return not self.has_ended(call)

    def push(self, call: int, data: memoryview, *, is_last: bool = False) -> int:
        """Send as much of a call's body as flow control allows in one frame; return how many bytes."""
        room = min(self._rules.local_flow_control_window(call), self._rules.max_outbound_frame_size, len(data))
        if room > 0:
            self._rules.send_data(call, data[:room].tobytes(), end_stream=is_last and room == len(data))
            self._flush()
        return max(0, room)

    def has_ended(self, call: int) -> bool:
        """Whether the server has ended a call."""
        return self.is_over or call in self.ended

    def read(self, patience_s: float) -> bool:
        """Receive data with a timeout; return whether there was any."""
        pending = getattr(self._socket, "pending", int)()
        if not pending and not select.select([self._socket], [], [], patience_s)[0]:
            return False
        try:
            data = self._socket.recv(_READ_BYTES)
            events = self._rules.receive_data(data) if data else []
        except ProtocolError:
            data, events = b"", []
        self.is_over |= not data
        for event in events:
            self._take_in(event)
        self._flush()
        return True

    def _take_in(self, event: Event) -> None:
        match event:
            case StreamReset() | StreamEnded():
                self.ended.add(event.stream_id)
            case ConnectionTerminated():
                self.is_over = True
            case DataReceived():
                self._rules.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    def _flush(self) -> None:
        if data := self._rules.data_to_send():
            self._socket.sendall(data)


class RawFrames:
    """A connection that sends arbitrary frames and discards received data."""

    def __init__(self, link: socket.socket, *, reads: bool = True) -> None:
        """Use a connection; without ``reads``, nothing is received, not even replies to pings."""
        self._socket = link
        self._reads = reads
        rules = H2Connection(H2Configuration(client_side=True))
        rules.initiate_connection()
        self.send_bytes(rules.data_to_send())

    def __enter__(self) -> RawFrames:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, frames: Iterable[Frame]) -> None:
        """Send frames.

        Raises:
            OSError: the server has ended the connection.
        """
        self.send_bytes(b"".join(frame.serialize() for frame in frames))

    def send_bytes(self, data: bytes) -> None:
        """Send serialized frames."""
        self._socket.settimeout(_SENDING_S)
        self._socket.sendall(data)
        if self._reads:
            self.drain()

    def drain(self) -> None:
        """Discard received data.

        Raises:
            OSError: the server has ended the connection.
        """
        self._socket.settimeout(0)
        try:
            while self._socket.recv(_READ_BYTES):
                pass
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        raise ConnectionResetError("the server ended it")


def header_block(path: str, metadata: Headers = ()) -> bytes:
    """Headers of a call, encoded without state, so they can be sent repeatedly on any connection."""
    return Encoder().encode([NeverIndexedHeaderTuple(*pair) for pair in headers_of(path, metadata)], huffman=False)


def opening(number: int, block: bytes, *, is_whole: bool = False) -> HeadersFrame:
    """The frame that begins a call."""
    flags = ["END_HEADERS", *(["END_STREAM"] if is_whole else [])]
    return HeadersFrame(number, block, flags=flags)
