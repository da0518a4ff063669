"""Bounds the memory of messages that callers begin and do not finish.

gRPC collects the bytes of a message until it is complete, and tells nobody. So a caller that withholds the last byte of
many large messages could fill the server's memory. How much a connection has received is known to the kernel; what it
has received in whole messages is counted here. The difference is what it has not finished, and this is charged to its
caller:

    connection = unfinished.connection(peer, caller.identity)
    connection.begin(reader)                # before messages of a call are read
    message = await reader.read()
    connection.whole(len(message))
    connection.finish(reader)

While calls read messages, `Unfinished.look` compares both, often if the server's memory grows, and rarely otherwise. It
ends calls of connections that hold unfinished messages:

- if nothing has arrived for `_SILENT_S`;
- if their caller holds more than its share, and they neither receive bytes nor complete messages as an honest client on
  a busy server does, or the caller completes none at all;
- if the caller holds `_FAR_MORE` times its share, whatever they do.

Calls end until the caller holds a single message in the second case, and one less than the limit in the third,
beginning with the largest connections. Of a connection, half of the calls end, chosen at random, and more at the next
look if that was not enough. So if an honest client looks odd for once, its other calls continue, and it makes progress.

If a caller completes nothing and has `_MANY_CALLS` on a connection, the connection is closed instead: to end the calls
one by one takes 0.1 ms for each, and more bytes would arrive than are freed.

The count of a connection is not exact: headers, acknowledgements and pings arrive, too. `_ALLOWANCE_BYTES` and
`_ALLOWANCE_BYTES_PER_S` are more than what they take. A connection that is shared by several callers is charged to the
one that used it last.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import mmap
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final, Protocol

from replay_server import errors
from replay_server.errors import RequestError
from replay_server.rpc.over_grpc.sockets import OpenSocket, find_connections

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.01
"""Seconds between two looks at the server's memory. Each takes 0.1 ms, most of it to wake up the event loop."""
_SOON_S: Final = 0.005
"""Seconds between two looks while a caller holds an eighth of its share: on loopback, 6 MiB can arrive within
`_LOOK_S`."""
_ALL_S: Final = 1.0
"""Seconds between two looks at all connections if memory does not grow; this takes 5 us for each connection."""
_GROWTH_BYTES: Final = 4 << 20
"""If the server's memory has grown by this much, all connections are looked at; after `_SOON_S`, by a quarter of it."""
_SILENT_S: Final = 10.0
"""A message of which nothing arrives for so long is given up."""
_STALLED_S: Final = 0.2
"""A connection from which nothing arrives for so long is not that of an honest client on a busy server."""
_ENDLESS_S: Final = 0.05
"""A connection that holds a lot and completes no message for so long is not, either. This is time in which the event
loop runs: while it is blocked, nobody's messages are completed."""
_IDLE_S: Final = 0.1
"""Nor is any connection of a caller that holds more than its share and completes no message for so long."""
_FAR_MORE: Final = 4
"""Factor of a caller's share that it never exceeds, whatever its connections do."""
_MANY_CALLS: Final = 16
"""More calls than an honest client has on a connection while it completes none of them."""
_LEAST_BYTES: Final = 1 << 18
"""Connections that hold less are left alone."""
_ALLOWANCE_BYTES: Final = 2048
"""Bytes that may arrive with each message: headers, frames, TLS records, and what acknowledges the reply."""
_ALLOWANCE_BYTES_PER_S: Final = 4096
"""Bytes that may arrive without any message: pings and their acknowledgements."""
_REPLY_BYTES_PER_BYTE: Final = 512
"""Bytes of a reply for each byte that acknowledges it."""
_SEARCHES: Final = 3
"""The sockets of connections that gRPC names otherwise, such as link-local ones, are not searched for any longer."""
_WARN_S: Final = 10.0
"""Seconds between two warnings."""
_STATM_BYTES: Final = 256
"""More than the size of /proc/self/statm."""
_GIVEN_BACK_BYTES: Final = 8 << 20
"""If so many unfinished bytes have been given up, the freed memory is given back to the operating system."""


class Ends(Protocol):
    """Reads the messages of a call."""

    def end(self, refusal: RequestError) -> None:
        """End the call with a refusal."""


class Connection:
    """A connection of a caller, and the calls on it that read messages."""

    def __init__(self, caller: str, now: float = 0.0, begins: Callable[[], None] = lambda: None) -> None:
        """``begins`` is called when a call begins to read."""
        self._begins = begins
        self.caller = caller
        """Identity of the last caller that used it."""
        self.readers: set[Ends] = set()
        """Calls that may hold an unfinished message."""
        self.unfinished = 0.0
        """Bytes of unfinished messages at the last look."""
        self.silent_s = 0.0
        """Seconds for which nothing had arrived at the last look."""
        self.completed = now
        """When a message was last seen complete, by the clock of the looks."""
        self.socket: OpenSocket | None = None
        """Its socket, once found."""
        self.searches = 0
        """How often its socket was searched for in vain."""
        self._expected = 0
        self._has_completed = False
        self._looked_at = 0

    @property
    def is_sought(self) -> bool:
        """Whether its socket is not known yet, and may be found."""
        return self.socket is None and self.searches < _SEARCHES

    @property
    def may_hold_some(self) -> bool:
        """Whether it may hold an unfinished message, or held one when it was last looked at."""
        return bool(self.readers) or self.unfinished >= _LEAST_BYTES

    def whole(self, size: int) -> None:
        """Count a complete message."""
        self._expected += size + (size >> 8) + _ALLOWANCE_BYTES
        self._has_completed = True

    def replied(self, size: int) -> None:
        """Count a reply, whose bytes the client acknowledges."""
        self._expected += size // _REPLY_BYTES_PER_BYTE

    def begin(self, reader: Ends) -> None:
        """Register a call that reads messages from now on."""
        self.readers.add(reader)
        self._begins()

    def finish(self, reader: Ends) -> None:
        """Forget a call that has read all of its messages."""
        self.readers.discard(reader)

    def look(self, now: float, since_s: float) -> bool:
        """Update `unfinished` after ``since_s`` seconds; return whether the connection is still open.

        ``now`` is the time by the clock of the looks.
        """
        received = None if self.socket is None else self.socket.received()
        if received is None:
            return self.socket is None
        came = received.size - self._looked_at
        if self._has_completed:
            self.completed = now
        self.unfinished = max(0.0, self.unfinished + came - self._expected - since_s * _ALLOWANCE_BYTES_PER_S)
        self._looked_at, self.silent_s = received.size, received.silent_s
        self._expected, self._has_completed = 0, False
        return True

    def lose_socket(self) -> None:
        """Forget the socket, which has been closed."""
        self.socket, self.unfinished, self.searches, self._looked_at = None, 0.0, 0, 0

    def end(self, refusal: RequestError, *, all_calls: bool) -> float:
        """End calls that may hold an unfinished message: all of them, or half, so that others continue.

        Return about how many bytes they held. Which of the calls held them is not known.
        """
        calls = tuple(self.readers)
        ending = calls if all_calls else random.sample(calls, (len(calls) + 1) // 2)
        for reader in ending:
            reader.end(refusal)
        held = self.unfinished * len(ending) / len(calls) if calls else self.unfinished
        self.unfinished -= held
        return held

    def cut(self) -> float:
        """Close the connection, which ends all of its calls; return how many bytes they held."""
        if self.socket is not None:
            self.socket.shut_down()
        held, self.unfinished = self.unfinished, 0.0
        return held


class Unfinished:
    """All connections, and what they hold."""

    def __init__(self, largest_bytes: int) -> None:
        """Allow messages of this many bytes; a caller may hold one of them, and half of another, at any time."""
        self._largest = largest_bytes
        self._most = largest_bytes + largest_bytes // 2
        self._connections: dict[str, Connection] = {}
        self._reads = asyncio.Event()  # set while a call may hold an unfinished message
        self._completed: dict[str, float] = {}  # when messages of each caller were last seen complete
        self._pause_s = _LOOK_S
        self._awake_s = 0.0  # the clock of the looks, which stands still while the event loop is blocked
        self._woke = self._looked = time.monotonic()
        self._memory = _memory_bytes()
        self._given_up = 0.0
        self._gave_up = self._ended = 0.0
        self._warned = -_WARN_S

    def connection(self, peer: str, caller: str) -> Connection:
        """Return the connection from an address, which this caller uses."""
        found = self._connections.get(peer)
        if found is None:
            found = self._connections[peer] = Connection(caller, self._awake_s, self._reads.set)
        found.caller = caller
        self._completed.setdefault(caller, self._awake_s)
        return found

    def open_calls(self) -> int:
        """Return how many calls read messages."""
        return sum(len(connection.readers) for connection in self._connections.values())

    async def look(self) -> None:
        """Look once, after a pause, and once calls read messages; see the docstring of the module."""
        await self._reads.wait()
        await asyncio.sleep(self._pause_s)
        now, memory = time.monotonic(), _memory_bytes()
        self._awake_s += min(now - self._woke, _LOOK_S)
        self._woke = now
        growth = _GROWTH_BYTES if self._pause_s == _LOOK_S else _GROWTH_BYTES // 4
        has_ended_some = now - self._ended < _ALL_S  # their memory is used again without growth
        if memory - self._memory < growth and now - self._looked < _ALL_S and not has_ended_some:
            self._memory, self._pause_s = min(self._memory, memory), _LOOK_S
            return
        self._memory = memory
        if any(connection.is_sought for connection in self._connections.values()):
            await self._find_sockets()
        now = time.monotonic()
        self._look_at_all(now, now - self._looked)
        self._pause_s = _LOOK_S
        self._looked = now
        self._end_some(now)
        self._give_back(now)
        if not self._given_up and not any(connection.may_hold_some for connection in self._connections.values()):
            self._reads.clear()

    async def _find_sockets(self) -> None:
        known = [peer for peer, connection in self._connections.items() if connection.is_sought]
        sockets = await asyncio.to_thread(find_connections)
        for peer in known:
            if peer in sockets:
                self._connections[peer].socket = sockets[peer]
            elif not self._connections[peer].readers:
                del self._connections[peer]  # closed meanwhile, or not a TCP connection
            else:
                self._connections[peer].searches += 1

    def _look_at_all(self, now: float, since_s: float) -> None:
        for peer, connection in list(self._connections.items()):
            is_open = connection.look(self._awake_s, since_s)
            if connection.completed == self._awake_s:
                self._completed[connection.caller] = self._awake_s
            if not is_open:
                self._gives_up(connection.unfinished, now)
                if connection.readers:  # they may be of a new connection from the same address
                    connection.lose_socket()
                else:
                    del self._connections[peer]
        callers = {connection.caller for connection in self._connections.values()}
        self._completed = {caller: when for caller, when in self._completed.items() if caller in callers}

    def _end_some(self, now: float) -> None:
        of_callers: defaultdict[str, list[Connection]] = defaultdict(list)
        for connection in self._connections.values():
            if connection.unfinished < _LEAST_BYTES:
                continue
            if connection.silent_s >= _SILENT_S:
                refusal = errors.message_unfinished(f"nothing of it arrived for {_SILENT_S:g} s")
                self._gives_up(connection.end(refusal, all_calls=True), now)
            else:
                of_callers[connection.caller].append(connection)
        for caller, connections in of_callers.items():
            completes = self._awake_s - self._completed[caller] < _IDLE_S
            if sum(connection.unfinished for connection in connections) > self._most / 8:
                self._pause_s = _SOON_S
            end = self._end_odd if completes else _end_quickly
            self._end_beyond(caller, self._most, self._largest, connections, now, end)
            far_more = _FAR_MORE * self._most
            self._end_beyond(caller, far_more, far_more - self._largest, connections, now, _end_half)

    def _end_odd(self, connection: Connection, refusal: RequestError) -> float:
        """End calls of a connection if no honest client on a busy server would look like this."""
        is_endless = connection.unfinished > self._largest and self._awake_s - connection.completed >= _ENDLESS_S
        is_odd = is_endless or connection.silent_s >= _STALLED_S
        return _end_half(connection, refusal) if is_odd else 0.0

    def _end_beyond(
        self,
        caller: str,
        most: int,
        enough: int,
        held: Iterable[Connection],
        now: float,
        end: Callable[[Connection, RequestError], float],
    ) -> None:
        """If a caller holds more than ``most`` bytes, end calls of its largest connections until ``enough`` are left.

        ``end`` may leave a connection alone, and returns how many bytes it has given up.
        """
        largest_first = sorted(held, key=lambda connection: -connection.unfinished)
        total = sum(connection.unfinished for connection in largest_first)
        why = f"the caller has sent more than {most} bytes of messages that are not complete"
        if total <= most:
            return
        for connection in largest_first:
            if total <= enough:
                return
            if ended := end(connection, errors.message_unfinished(why)):
                total -= ended
                self._gives_up(ended, now)
                self._ended = now
                self._warn(f"calls of a client end: {why}", caller, now)

    def _warn(self, message: str, caller: str, now: float) -> None:
        if now - self._warned >= _WARN_S:
            self._warned = now
            log.warning(message, extra={"client": caller})

    def _gives_up(self, size: float, now: float) -> None:
        self._given_up += size
        if size:
            self._gave_up = now

    def _give_back(self, now: float) -> None:
        """Give memory back once nothing has been given up for a while: this blocks all threads for 0.3 ms per MB."""
        if self._given_up and now - self._gave_up >= _ALL_S:
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None and self._given_up >= _GIVEN_BACK_BYTES:
                trim(0)
            self._given_up = 0.0
            self._memory = _memory_bytes()


def _end_half(connection: Connection, refusal: RequestError) -> float:
    return connection.end(refusal, all_calls=False)


def _end_quickly(connection: Connection, refusal: RequestError) -> float:
    return connection.cut() if len(connection.readers) >= _MANY_CALLS else _end_half(connection, refusal)


def _memory_bytes() -> int:
    """Memory of this process, without pages of files."""
    _, resident, shared, *_ = os.pread(_statm(), _STATM_BYTES, 0).split()
    return (int(resident) - int(shared)) * mmap.PAGESIZE


@cache
def _statm() -> int:
    """Descriptor of the file, which stays open: to open it takes ten times as long as to read it."""
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
