"""A shard whose server is away: its updates are held, and a thread waits for the server's return."""

from __future__ import annotations

import logging
import threading
import weakref
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from replay_proto.frames import Content

from replay_client._operations.server import describe
from replay_client._transport.call import Call, run
from replay_client.errors import ReplayError
from replay_client.sync.shards.servers.members import Member

log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 0.25
_POLL_S: Final = 0.5
MOST_HELD: Final = 1 << 16
"""Maximum number of updates held for a shard."""


class AwayShard:
    """See the module."""

    def __init__(self, member: Member, *, is_replaced: bool = False) -> None:
        """Start a thread that polls the server, unless ``is_replaced``: the server has lost the table."""
        self.member = member
        self.is_replaced = is_replaced
        """Whether the server has lost the table for good."""
        self.is_back = False
        """Whether the server is back with the same table."""
        self.dropped = 0
        """Number of updates that were dropped, because `MOST_HELD` others were held."""
        self._held: dict[int, float] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if not is_replaced:
            waiting = (weakref.ref(self), self._ended)  # so that the thread ends when the sampler is collected
            self._thread = threading.Thread(target=_look, args=waiting, name="replay-shard-away", daemon=True)
            self._thread.start()

    def hold(self, keys: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Hold updates: local keys int64[n] and priorities float64[n]. For duplicate keys, the last priority counts."""
        for key, priority in zip(keys.tolist(), priorities.tolist(), strict=True):
            if key in self._held or len(self._held) < MOST_HELD:
                self._held[key] = priority
            else:
                self.dropped += 1

    def held(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the held keys int64[n] and priorities float64[n]."""
        return np.array(list(self._held), np.int64), np.array(list(self._held.values()), np.float64)

    def end(self, *, is_waited_for: bool = True) -> None:
        """Stop polling. ``is_waited_for``: whether to wait until the thread has ended."""
        self._ended.set()
        if self._thread is not None and is_waited_for:
            self._thread.join()

    def _call(self, call: Call) -> Content:
        return self.member.session.connection.call(replace(call, timeout_s=_POLL_S))

    def poll(self) -> bool:
        """Ask the server for the table; return whether it has answered. The thread calls this."""
        table = self.member.table
        try:
            found = run(describe(table.name), self._call)
        except ReplayError:
            return False
        if found.uid == table.uid:
            self.is_back = True
        else:
            self.is_replaced = True
            log.warning("%s returned with another table %r; its rows are lost", self.member, table.name)
        return True


def _look(away: weakref.ref[AwayShard], ended: threading.Event) -> None:
    """Ask every now and then, until the server answers or nobody wants to know."""
    while not ended.wait(_LOOK_EVERY_S):
        shard = away()
        try:
            if shard is None or shard.poll():
                return
        except Exception:  # of any kind: otherwise, the shard would stay away for good
            log.exception("looking for a server that is away continues")
        del shard
