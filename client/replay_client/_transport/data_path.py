"""Shortcuts that bypass gRPC if client and server share a host: mapped files for rows, and a local socket for calls.

That a client can read the files of a table proves nothing: they may be a copy, or lie on a file system that several
machines share. So a client maps them only after it has found one and the same id in three places: in the description of
the table, which came over gRPC; in the owner record of the directory, which must be the original and not a copy; and in
the answer of the server that listens on the socket there. Calls over the socket name the id, too. A server draws a new
id at each start, so both shortcuts end with the server, and are found again when a new one has taken its place.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

from replay_proto.frames import Content
from replay_proto.owner import read_owner

from replay_client._rows.mapped_rows import MappedRows, NearRows
from replay_client._transport.frame_stream import FrameStream
from replay_client._transport.local_calls import RETRY_S, FrameMethod, LocalAddress, LocalCalls
from replay_client.errors import ReplayError
from replay_client.results.description import TableDescription

RENEW_S: Final = 2.0
"""Time limit for finding out which server is there."""
_LEAST_RENEW_S: Final = 0.25
_MOST_RENEW_S: Final = 1.0
"""The same for calls, which have a time limit themselves."""
_ORDERED_LOADS: Final = ("x86_64", "AMD64")
"""Architectures (named as in `platform.machine`) with the memory order that the check of copied rows needs."""

Described: TypeAlias = TableDescription | None
Renewal: TypeAlias = Generator[LocalAddress | None, bool | Described, None]
"""Steps of a renewal. It yields an address, and receives whether the server there accepts it; or None, and receives the
current description of the table, or None if the server does not answer."""


def renewal_s(limit_s: float | None) -> float:
    """Return how long a call with this time limit looks for shortcuts: a quarter, within bounds. None: a stream."""
    return RENEW_S if limit_s is None else min(max(_LEAST_RENEW_S, limit_s / 4), _MOST_RENEW_S)


class Shortcuts:
    """Base class of the shortcuts of all clients: what is known and what to find out, without I/O except reading."""

    def __init__(self, table: TableDescription, authorization: Callable[[], str], *, is_wanted: bool) -> None:
        """Know nothing but the description of the table yet.

        ``authorization`` returns the header that authenticates a call; empty without a token.
        """
        self.near = NearRows()
        """Copies rows from the table's files, once it is proved that they are the server's."""
        self.address: LocalAddress | None = None
        """The server's socket; None: use gRPC."""
        self._authorization = authorization
        self._table = table
        self._not_before_s = 0.0
        if is_wanted and table.owner_id and self._id_there() is not None:
            self._adopt(table)

    def doubt(self) -> None:
        """Note that the server may have been replaced."""
        self.near.is_doubted = self.address is not None

    def doubt_if_replaced(self) -> None:
        """Doubt if another server has taken the directory. Call this before a stream is opened."""
        if self.address is not None and self._id_there() not in (None, self._table.owner_id):
            self.doubt()
            self._not_before_s = 0.0

    def _has_to_look(self) -> bool:
        near = self.near
        is_refused = near.mapped is not None and near.mapped.is_refused  # not the property: this is for each reply
        return (near.is_doubted or is_refused) and time.monotonic() >= self._not_before_s

    def _renewal(self) -> Renewal:
        """Find out which server is there. If that is impossible, doubt on, and try again later."""
        try:
            yield from self._steps()
        finally:
            is_settled = not self.near.is_doubted and not self.near.is_refused
            self._not_before_s = 0.0 if is_settled else time.monotonic() + RETRY_S

    def _steps(self) -> Renewal:
        if self.near.is_refused or self._id_there() not in (None, self._table.owner_id):
            described = yield None
            if not isinstance(described, TableDescription):
                return
            if described.uid != self._table.uid or not described.owner_id:
                self._leave()
                return
            if described.owner_id != self._table.owner_id:
                self._adopt(described)
        there = self._id_there()
        if there is None:
            self._leave()
        elif there == self._table.owner_id:
            assert self.address is not None
            if self.near.mapped is not None or (yield self.address):
                self._map()

    def _id_there(self) -> bytes | None:
        """Return the id in the owner record of the table's directory; None if it is unreadable or a copy."""
        try:
            found = read_owner(Path(self._table.directory).parents[1])
        except (OSError, IndexError):
            return None
        return found.record.id if found.record is not None and found.is_original else None

    def _adopt(self, table: TableDescription) -> None:
        self._table = table
        self.near.mapped, self.near.is_doubted = None, True
        self.address = LocalAddress(table, self._authorization)

    def _leave(self) -> None:
        """Use gRPC from now on: the server is elsewhere."""
        self.near.mapped, self.near.is_doubted = None, False
        self.address = None

    def _map(self) -> None:
        try:
            if self.near.mapped is None and platform.machine() in _ORDERED_LOADS:
                self.near.mapped = MappedRows(self._table)
        except OSError:
            self._leave()
            return
        self.near.is_doubted = False


class DataPath(Shortcuts):
    """Shortcuts to one table. Thread-safe."""

    def __init__(
        self,
        table: TableDescription,
        authorization: Callable[[], str] = str,
        *,
        describe: Callable[[float], TableDescription] | None = None,
    ) -> None:
        """See `Shortcuts`.

        ``describe`` asks the server for the table's current description, for so many seconds; None: use gRPC only.
        """
        self.calls: LocalCalls | None = None
        """Makes the calls of learners and writers over the local socket; None: they use gRPC."""
        self._describe = describe
        self._renewing = threading.Lock()
        super().__init__(table, authorization, is_wanted=describe is not None)

    def renew(self, limit_s: float | None = None) -> None:
        """Find out which server is there, if that is in doubt; otherwise, return at once. Hold no lock meanwhile.

        ``limit_s`` is the time limit of the call that needs it; None: a stream does.
        """
        if not self._has_to_look():
            return
        within_s = renewal_s(limit_s)
        deadline = time.monotonic() + within_s
        if not self._renewing.acquire(timeout=within_s):
            return
        try:
            if self._has_to_look():
                self._take(self._renewal(), deadline)
        finally:
            self._renewing.release()

    def call(self, method: FrameMethod, request: bytes, timeout_s: float) -> Content | None:
        """Make a call over the local socket; see `LocalCalls.call`."""
        if self.calls is None or self.address is None:
            return None
        answer = self.calls.call(method, request, timeout_s)
        if answer is None:
            self.doubt()
        return answer

    def open_stream(self, method: FrameMethod) -> FrameStream | None:
        """Open a stream that bypasses gRPC, if possible."""
        return None if self.calls is None or self.address is None else self.calls.open_stream(method)

    def _take(self, steps: Renewal, deadline: float) -> None:
        with suppress(StopIteration):
            address = next(steps)
            while True:
                within_s = max(0.0, deadline - time.monotonic())
                address = steps.send(self._current(within_s) if address is None else self._accepts(address, within_s))

    def _current(self, within_s: float) -> TableDescription | None:
        assert self._describe is not None
        try:
            return self._describe(within_s)
        except ReplayError:
            return None

    def _accepts(self, address: LocalAddress, within_s: float) -> bool:
        return self.calls is not None and self.calls.is_accepted_at(address, within_s)

    def _adopt(self, table: TableDescription) -> None:
        super()._adopt(table)
        assert self.address is not None
        if self.calls is None:
            self.calls = LocalCalls(self.address)
        else:
            self.calls.move(self.address)
