"""The shards of a table while servers are added, drained and given up.

    roster = Roster(fleet, name, members, shards)
    roster.members                      # the shards of the newest known map
    roster.heard(version)               # a reply had this version: if it is newer, a thread opens the new shards
    roster.poll(every_s=0.5)            # the same at intervals, because a server is away
    roster.owners(keys)                 # the shards of these keys; opens those that could not be opened before

The table, its samplers and its writers share a roster. They poll whether `members` has changed, and wait only if they
have keys of a shard that is not open.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol
from weakref import WeakSet

import numpy as np
from numpy.typing import ArrayLike, NDArray
from replay_proto.schema import Schema

from replay_client._operations import server as operations
from replay_client._rows.checks import checked_update
from replay_client._shards.keys import local_keys, shard_ids
from replay_client._shards.map_clashes import refuse_clash
from replay_client.batch import UpdateResult
from replay_client.errors import InvalidArgumentError, ReplayError, ServerUnavailableError
from replay_client.results.shards import Shard, ShardMap
from replay_client.results.stats import ShardReport
from replay_client.sync.shards.servers.asking import ASK_S
from replay_client.sync.shards.servers.fleet import Fleet
from replay_client.sync.shards.servers.members import Member, described_by_each, opened


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

    def newest(self) -> ShardMap:
        """Fetch the newest map. It does not change `members`.

        Raises:
            ServerUnavailableError: no server is reachable.
        """
        return self._fleet.current() or self._map

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

    def owners(self, keys: NDArray[np.int64]) -> list[tuple[Member, NDArray[np.intp]]]:
        """Return the shards that own these keys, int64[n], each with the positions of its keys.

        Keys that no shard owns are stale, because ids of shards are never reused.

        Raises:
            ReplayError: as for `open`.
        """
        ids = shard_ids(keys)
        self.open(np.unique(ids).tolist())
        return [(member, mine) for member in self.members if len(mine := np.flatnonzero(ids == member.id))]

    def open(self, ids: Iterable[int]) -> None:
        """Open those of these shards that are not open, as their servers were away or have just been added.

        Ids of shards that were given up or never existed are ignored.

        Raises:
            ServerUnavailableError: the server of a shard is away; the message names it.
            ReplayError: as for `opened`.
        """
        given_up = {shard.id for shard in self._map.shards} - {shard.id for shard in self._map.in_use}
        known = given_up | {member.id for member in self.members}
        missing = {id for id in ids if id >= 0 and id not in known}
        if missing:
            self._open(lambda shard: shard.id in missing)

    def open_all(self) -> None:
        """Open all shards that are not open, and check that no server is away.

        Raises:
            ReplayError: as for `open`.
        """
        self._open(lambda shard: True)

    def _open(self, is_wanted: Callable[[Shard], bool]) -> None:
        newest = self.newest()  # a shard may have been added since the last poll
        wanted = list(filter(is_wanted, newest.in_use))
        there = described_by_each(self._fleet, newest, self._name, wanted) if wanted else {}
        if self._closed(there):
            with self._looking:
                self._renew()
        for shard in self._closed(there):
            raise ServerUnavailableError(f"shard {shard.id} at {shard.address} was away a moment ago; try again")

    def _closed(self, shards: Iterable[Shard]) -> list[Shard]:
        """Return those of these shards that are not open."""
        known = {member.id for member in self.members}
        return [shard for shard in shards if shard.id not in known]

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


def update_rows(roster: Roster, schema: Schema, keys: ArrayLike, columns: Mapping[str, Any]) -> UpdateResult:
    """Update rows in their shards; see `Table.update`.

    Raises:
        InvalidArgumentError: as for `Table.update`.
        ServerUnavailableError: the server of a shard is unreachable. Rows in other shards may have been updated.
    """
    checked, values = checked_update(schema, keys, columns)
    updated, stale, left = 0, 0, len(checked)
    for member, mine in roster.owners(checked):
        result = member.table.update(local_keys(checked[mine]), {name: all_[mine] for name, all_ in values.items()})
        updated, stale, left = updated + result.updated, stale + result.stale, left - len(mine)
    return UpdateResult(updated, stale + left)
