"""The shards of a table while servers are added, drained and given up.

    roster = Roster(fleet, name, members, shards)
    roster.members                      # the shards of the newest known map
    roster.heard(version)               # a reply had this version: if it is newer, a thread opens the new shards
    roster.poll(every_s=0.5)            # the same at intervals, because a server is away

The table, its samplers and its writers share a roster. None of them waits for it: they poll whether `members` has
changed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol
from weakref import WeakSet

from replay_client._operations import server as operations
from replay_client._shards.map_clashes import refuse_clash
from replay_client.errors import InvalidArgumentError, ReplayError
from replay_client.results.shards import ShardMap
from replay_client.results.stats import ShardReport
from replay_client.sync.shards.servers.asking import ASK_S
from replay_client.sync.shards.servers.fleet import Fleet
from replay_client.sync.shards.servers.members import Member, opened


class RowSource(Protocol):
    """A writer of several shards."""

    def inserted(self, shard_id: int) -> int:
        """Return the number of rows ever inserted into a shard by anyone, according to the last reply; 0: unknown."""
        ...

    def coming(self, shard_id: int) -> int:
        """Return how many rows of this writer are not in the shard yet, including those of unfinished episodes."""
        ...


class Fills:
    """How full each shard is, as far as this process knows, so that new rows go to the emptier shards.

        fills = Fills()
        fills.add(source)                   # a writer that gets replies from the shards, and has rows for them
        fills.heard(shard_id, inserted)     # another reply said how many rows were ever inserted into a shard
        fills.rows(shard_id)                # including rows that are not there yet

    A reply tells only its own writer how full a shard is. If each writer went by its own replies, then all would choose
    a shard whose replies are late, because none would know how many rows the others have for it. Thread-safe.
    """

    def __init__(self) -> None:
        """Begin without sources."""
        self._heard: dict[int, int] = {}
        self._sources: WeakSet[RowSource] = WeakSet()
        self._guard = threading.Lock()

    def add(self, source: RowSource) -> None:
        """Count the rows of a writer."""
        with self._guard:
            self._sources.add(source)

    def remove(self, source: RowSource) -> None:
        """Stop counting the rows of a writer, if it was not removed before."""
        with self._guard:
            self._sources.discard(source)

    def heard(self, shard_id: int, inserted: int) -> None:
        """Remember how many rows were ever inserted into a shard, from a reply."""
        with self._guard:
            self._heard[shard_id] = max(inserted, self._heard.get(shard_id, 0))

    def rows(self, shard_id: int) -> int:
        """Return the number of rows ever inserted into a shard, plus those that are coming; 0 if nothing is known."""
        with self._guard:
            sources, inserted = list(self._sources), self._heard.get(shard_id, 0)
        coming = sum(source.coming(shard_id) for source in sources)
        return max([inserted, *(source.inserted(shard_id) for source in sources)]) + coming


log = logging.getLogger(__name__)

AWAY_POLL_S: Final = 0.5
"""Seconds between polls for a newer map while a server is away."""
_HEARD_S: Final = 0.02
_RETRY_S: Final = 0.5


class Roster:
    """See the module. Thread-safe."""

    def __init__(self, fleet: Fleet, name: str, members: Sequence[Member], shards: ShardMap) -> None:
        """``shards`` is the shard map. ``members`` are its shards that could be opened for this table; at least one."""
        self.members = tuple(members)
        """The shards, ascending by id. Each change replaces the tuple."""
        self.fills = Fills()
        """How full the shards are."""
        self._map = shards
        self._fleet = fleet
        self._name = name
        self._polled_at = time.monotonic()
        self._looking = threading.Lock()
        """Held during a poll."""

    def __reduce__(self) -> tuple[Callable[..., Roster], tuple[Any, ...]]:
        return Roster, (self._fleet, self._name, self.members, self._map)

    @property
    def shards(self) -> ShardMap:
        """The newest map so far."""
        return self._map

    @property
    def fleet(self) -> Fleet:
        """The servers."""
        return self._fleet

    def report(self, shard_id: int, report: ShardReport) -> None:
        """Report, in a thread, the last known state of a shard that is away, to be included in `Stats`."""
        threading.Thread(target=self.tell, args=({shard_id: report},), name="replay-report", daemon=True).start()

    def report_soon(self, shard_id: int, report: ShardReport) -> None:
        """Report the state of a shard to the other servers, together with all other reports of the next second."""
        self._fleet.reports.add(self, shard_id, report)

    def tell(self, reports: Mapping[int, ShardReport]) -> None:
        """Report the states of shards to the servers of all other shards; wait at most `ASK_S` for one that hangs."""
        for member in self.members:
            try:
                for shard_id, report in reports.items():
                    if shard_id != member.id:
                        about = operations.report_shard(member.table.name, member.table.uid, shard_id, report)
                        member.session.connection.ask(about, timeout_s=ASK_S)
            except ReplayError as error:  # for example, this server is away, too
                log.debug("%s gets no reports of other shards: %s", member, error)

    @property
    def _is_incomplete(self) -> bool:
        """Whether a shard in the map could not be opened yet."""
        return len(self.members) < len(self._map.in_use)

    def heard(self, version: int) -> None:
        """Note that a server has this version of the map. Cheap if the version is not new."""
        if version > self._map.version:
            self.poll(every_s=_HEARD_S)
        elif self._is_incomplete:
            self.poll(every_s=_RETRY_S)

    def poll(self, *, every_s: float) -> None:
        """Look for a newer map in a thread, unless the last poll was less than ``every_s`` seconds ago."""
        if time.monotonic() - self._polled_at < every_s:
            return
        if not self._looking.acquire(blocking=False):
            return
        threading.Thread(target=self._look, name="replay-shard-map", daemon=True).start()

    def _look(self) -> None:
        try:
            self._renew()
        except InvalidArgumentError as error:
            log.warning("the servers of table %r cannot be followed: %s", self._name, error)
        except ReplayError as error:  # for example, no server answers, or the client was closed
            log.debug("no newer shard map for table %r: %s", self._name, error)
        finally:
            self._polled_at = time.monotonic()
            self._looking.release()

    def _renew(self) -> None:
        shards = self._fleet.current()
        if shards is None or shards.version < self._map.version:
            return
        if shards.uid != self._map.uid:  # another service at these addresses
            return
        refuse_clash(("this client", self._map), ("a server", shards))
        if shards.version == self._map.version and not self._is_incomplete:
            return
        addresses = {shard.id: shard.address for shard in shards.in_use}
        for earlier in self._map.in_use:
            if addresses.get(earlier.id, earlier.address) != earlier.address:
                log.info("shard %d of table %r is now at %s", earlier.id, self._name, addresses[earlier.id])
                self._fleet.moved(earlier.address, addresses[earlier.id])
        known = {member.id: member for member in self.members}
        active = {shard.id for shard in shards.in_use if shard.state == "active"}
        members = tuple(
            replace(member, is_active=member.id in active) for member in opened(self._fleet, shards, self._name, known)
        )
        if members != self.members:
            log.info("table %r now has %s", self._name, ", ".join(map(str, members)))
            self.members = members
        self._map = shards
