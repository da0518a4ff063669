"""Limits the connections of each lane, with a reply that names the limit.

gRPC closes a connection over its own limit without a word: its client cannot tell a full server from a broken one, and
this process does not even learn of it. So gRPC's limit is a little higher, and calls on the connections in between are
refused here. A connection counts once it has made a call; those that never do only reach gRPC's limit. Connections in
between make room for others that have not been told yet: when half of the places are taken, the oldest are closed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from ipaddress import ip_address
from typing import Final
from urllib.parse import unquote

from replay_server import errors
from replay_server.rpc.over_grpc.sockets import find_connections

log = logging.getLogger(__name__)

SPARE: Final = 32
"""Connections of a lane that may wait for room; gRPC closes further ones."""
_KEPT: Final = SPARE // 2
"""Connections of a lane that may stay after they were refused; the other places are for those that come."""
_LOOK_S: Final = 0.1
"""Minimum time between two looks at a full lane."""
_SAY_S: Final = 60.0
"""Minimum time between two warnings."""
_Peer = tuple[bytes, int]
"""Address and port."""

# Linux's NETLINK_SOCK_DIAG, which lists this host's sockets; see sock_diag(7).
_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_REQUEST_DUMP: Final = 0x301
_DONE, _ERROR = 3, 2
_ESTABLISHED: Final = 1
_HEAD: Final = struct.Struct("=IHHII")
_QUERY: Final = struct.Struct("=BBBxI2s2s16s16sIII")
_FOUND: Final = struct.Struct("=BBBB2s2s16s16s")
_REPLY_BYTES: Final = 1 << 16
_MAPPED: Final = bytes(10) + b"\xff\xff"
"""Begins the IPv6 form of an IPv4 address."""


class Connections:
    """The connections of a server that have made calls."""

    def __init__(self, most: int, lanes: int, ticks: Callable[[], float] = time.monotonic) -> None:
        """Count nothing yet. ``most`` is the maximum number of connections per lane."""
        self.port = 0
        """The port of the server, once it is bound."""
        self.refused = 0
        """Connections refused so far; each is counted once, and a client that connects again is counted again."""
        self._most = most
        self._lanes = lanes
        self._ticks = ticks
        self._lane_of: dict[str, int] = {}  # of the connections that were admitted
        self._sizes: Counter[int] = Counter()  # of the lanes; may include connections that are closed
        self._turned_away: dict[str, int] = {}  # their lanes, oldest first
        self._makes_room = False  # whether room is made soon
        self._looked_at = self._said_at = -_SAY_S

    def admit(self, peer: str) -> None:
        """Admit a connection at its first call. ``peer`` is its address in gRPC's format, such as ``ipv4:10.0.0.7:1``.

        Raises:
            RequestError: TOO_MANY_CONNECTIONS if its lane is full.
        """
        if peer in self._lane_of or not peer.startswith(("ipv4:", "ipv6:")):
            return
        address, _ = _parsed(peer)
        lane = lane_of(address, self._lanes)
        if self._sizes[lane] >= self._most:
            self._forget_closed()
        if self._sizes[lane] >= self._most:
            self._refuse(peer, lane, str(ip_address(address)))
        self._lane_of[peer] = lane
        self._sizes[lane] += 1
        self._turned_away.pop(peer, None)

    def _forget_closed(self) -> None:
        """Find out which connections are still open. If the kernel does not tell, gRPC's limit has to do."""
        if self._ticks() - self._looked_at < _LOOK_S:
            return
        self._looked_at = self._ticks()
        try:
            live = {*peers_of(self.port)}
        except OSError:
            live = set()
        self._lane_of = {peer: lane for peer, lane in self._lane_of.items() if _parsed(peer) in live}
        self._sizes = Counter(self._lane_of.values())
        self._turned_away = {peer: lane for peer, lane in self._turned_away.items() if _parsed(peer) in live}

    def _make_room(self) -> None:
        """Close refused connections if their lane has little room for others, which would be closed without a word."""
        self._makes_room = False
        sizes = Counter(self._turned_away.values())
        too_many = []
        for peer, lane in self._turned_away.items():
            if sizes[lane] > _KEPT:
                sizes[lane] -= 1
                too_many.append(peer)
        if too_many:
            sockets = find_connections()
            for peer in too_many:
                del self._turned_away[peer]
                if peer in sockets:
                    sockets[peer].shut_down()

    def _refuse(self, peer: str, lane: int, host: str) -> None:
        if peer not in self._turned_away:
            self._turned_away[peer] = lane
            self.refused += 1
        if not self._makes_room:
            self._makes_room = True
            asyncio.get_running_loop().call_later(_LOOK_S, self._make_room)
        if self._ticks() - self._said_at >= _SAY_S:
            self._said_at = self._ticks()
            log.warning(
                "a connection from %s is refused, %d so far: its lane has %d already (--max-connections)",
                *(host, self.refused, self._most),
                extra={"client": host, "refused": self.refused, "limit": self._most},
            )
        raise errors.too_many_connections(self._most)


def lane_of(address: bytes, lanes: int) -> int:
    """Return the lane of a host by its address of 4 or 16 bytes: what the program in `lanes` computes."""
    words = struct.unpack(f">{len(address) // 4}I", address)
    return int(words[0] if len(words) == 1 else words[0] ^ words[1]) % lanes


def peers_of(port: int) -> Iterator[_Peer]:
    """Yield the peers of the established connections to a local port."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with closing(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG)) as kernel:
            query = _QUERY.pack(
                *(family, socket.IPPROTO_TCP, 0, 1 << _ESTABLISHED, port.to_bytes(2, "big"), b"", b"", b"", 0, 0, 0)
            )
            kernel.send(_HEAD.pack(_HEAD.size + len(query), _BY_FAMILY, _REQUEST_DUMP, 0, 0) + query)
            while (yield from _parts(kernel.recv(_REPLY_BYTES))):
                pass


def _parts(reply: bytes) -> Generator[_Peer, None, bool]:
    """Yield the peers in a part of the kernel's reply, and return whether another part follows."""
    start = 0
    while start < len(reply):
        length, kind, *_ = _HEAD.unpack_from(reply, start)
        if kind == _DONE:
            return False
        if kind == _ERROR:
            raise OSError("the kernel does not list this server's connections")
        family, _, _, _, _, port, _, address = _FOUND.unpack_from(reply, start + _HEAD.size)
        yield address[:4] if family == socket.AF_INET else _plain(address), int.from_bytes(port, "big")
        start += (length + 3) & ~3
    return True


def _plain(address: bytes) -> bytes:
    return address[len(_MAPPED) :] if address.startswith(_MAPPED) else address


def _parsed(peer: str) -> _Peer:
    """Parse a peer in gRPC's format."""
    host, _, port = unquote(peer.partition(":")[2]).rpartition(":")
    return _plain(ip_address(host.strip("[]").partition("%")[0]).packed), int(port)
