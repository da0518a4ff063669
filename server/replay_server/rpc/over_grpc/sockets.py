"""What the kernel knows about the connections of gRPC servers, whose sockets gRPC does not show.

Descriptors are only looked at, not kept as duplicates, which would keep a connection open that gRPC has closed. So a
descriptor may be closed at any time, and its number used again; the number of the inode tells.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import stat
import struct
import termios
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import quote

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_INFO_BYTES: Final = 136
"""Bytes of Linux's `tcp_info` up to the end of `tcpi_bytes_received`."""
_BYTES_RECEIVED: Final = struct.Struct("=128xQ")
_LAST_RECEIVED_MS: Final = struct.Struct("=52xI")
_V4_MAPPED: Final = bytes(10) + b"\xff\xff"


class Received(NamedTuple):
    """What a connection has received."""

    size: int
    """Bytes that gRPC has read, since the connection was opened."""
    silent_s: float
    """Seconds since the last bytes arrived."""


class OpenSocket(NamedTuple):
    """A connected TCP socket of this process."""

    number: int
    """Its descriptor."""
    inode: int
    """Tells it from a later one with the same descriptor."""

    def received(self) -> Received | None:
        """Ask the kernel; None if the connection has been closed, or the kernel does not tell."""
        info = ctypes.create_string_buffer(_INFO_BYTES)
        unread = bytearray(4)
        try:
            if os.fstat(self.number).st_ino != self.inode:
                return None
            if _option(self.number, socket.IPPROTO_TCP, socket.TCP_INFO, info) < _INFO_BYTES:
                return None
            fcntl.ioctl(self.number, termios.FIONREAD, unread)
        except OSError:
            return None
        (size,), (silent_ms,) = _BYTES_RECEIVED.unpack(info.raw), _LAST_RECEIVED_MS.unpack_from(info.raw)
        return Received(size - int.from_bytes(unread, "little"), silent_ms / 1000)

    def shut_down(self) -> None:
        """End the connection, unless it has been closed; gRPC notices, and closes its descriptor."""
        with suppress(OSError), socket.fromfd(self.number, socket.AF_INET, socket.SOCK_STREAM) as same:
            if os.fstat(same.fileno()).st_ino == self.inode:
                same.shutdown(socket.SHUT_RDWR)


def find_connections() -> dict[str, OpenSocket]:
    """Find all connected TCP sockets of this process, by the address of the peer in gRPC's format.

    This takes about 2 us for each descriptor of the process, so it should run in a thread.
    """
    found = {}
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            status = os.fstat(number)
            if stat.S_ISSOCK(status.st_mode) and (peer := _peer_of(number)) is not None:
                found[peer] = OpenSocket(number, status.st_ino)
    return found


def _peer_of(number: int) -> str | None:
    """The peer of a socket as gRPC writes it; None if it is not a connected TCP socket."""
    address = ctypes.create_string_buffer(28)
    length = ctypes.c_uint32(len(address))
    if _LIBC.getpeername(number, address, ctypes.byref(length)):
        return None
    family, port = struct.unpack_from("=H", address.raw)[0], struct.unpack_from(">2xH", address.raw)[0]
    if family == socket.AF_INET:
        return f"ipv4:{socket.inet_ntop(family, address.raw[4:8])}:{port}"
    if family != socket.AF_INET6:
        return None
    host = address.raw[8:24]
    if host.startswith(_V4_MAPPED):
        return f"ipv4:{socket.inet_ntop(socket.AF_INET, host[12:])}:{port}"
    return f"ipv6:{quote(f'[{socket.inet_ntop(family, host)}]', safe=':')}:{port}"


def _option(number: int, level: int, option: int, into: ctypes.Array[ctypes.c_char]) -> int:
    """Read a socket's option; return the number of its bytes."""
    length = ctypes.c_uint32(len(into))
    if _LIBC.getsockopt(number, level, option, into, ctypes.byref(length)):
        raise OSError(ctypes.get_errno(), "getsockopt")
    return length.value
