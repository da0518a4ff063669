"""Manages the writers of a `ShardedWriter`, one for each shard, as servers are added, go away or are given up.

    writers = ShardWriters(roster, options, reconnect_timeout_s, random)
    shard = writers.choose()                # of two random shards, the emptier one; for a stream's next rows
    writers[shard].append(...)
    shard = writers.choose(shard, 200)      # the stream has written 200 rows there, and needs another shard
    writers.follow()                        # uses new shards, and moves unacknowledged rows of lost ones

If a shard is no longer in the map, its writer is given up, and the unacknowledged rows are inserted into another shard
as new rows. This does not duplicate rows, because the lost server never returns with its shard.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

import numpy as np
from replay_proto.framing import Array
from replay_proto.v1 import replay_pb2

from replay_client._rows.block import RowBlock
from replay_client._transport.long_waits import FOR_INSERTS, LongWait, explained, too_late
from replay_client._writing.writing import WriterOptions
from replay_client.errors import DeadlineExceededError, ReplayError, ServerUnavailableError
from replay_client.results.description import TableDescription
from replay_client.sync.shards.servers.members import Member
from replay_client.sync.shards.servers.reports import report_of
from replay_client.sync.shards.servers.roster import AWAY_POLL_S, Roster
from replay_client.sync.writer import Writer

log = logging.getLogger(__name__)

_POLL_S: Final = 0.02
_MAP_POLL_S: Final = 1.0
"""Seconds between polls for a newer shard map while all servers are there."""
_RETRY_S: Final = 30.0
"""Seconds between attempts to open the writer of an unreachable server."""
_FLUSH_S: Final = 0.1
"""Seconds that `flush` waits before it checks again whether the map has changed."""


class ShardWriters:
    """See the module."""

    def __init__(
        self, roster: Roster, options: WriterOptions, *, reconnect_timeout_s: float, random: np.random.Generator
    ) -> None:
        """Open a writer for each shard that gets new rows; see `ShardedWriter`.

        Raises:
            ServerUnavailableError: no server can be reached.
            InvalidArgumentError: an option is out of range.
        """
        self._roster = roster
        self._seen: tuple[Member, ...] = ()
        self._options = replace(options, reconnect_timeout_s=math.inf, waits_while_away=False)
        self._reconnect_timeout_s = reconnect_timeout_s
        self._random = random
        self._by_id: dict[int, Writer] = {}
        self._active: list[int] = []  # shards that get new rows
        self._orphans: list[RowBlock] = []  # rows of lost shards, until another shard adopts them
        self._retry_at = math.inf  # when to retry opening the writers of unreachable servers
        self._opened: dict[int, TableDescription] = {}  # description of each shard when it was opened
        self._reported: dict[int, int] = {}  # rows ever inserted into each shard, as last reported
        self._given_up = 0  # rows that lost shards have acknowledged
        self._streams: Counter[int] = Counter()  # number of streams that write to each shard
        self._turns = 0  # how often a stream has left a shard
        self._rows_of_turns = 0
        self._guard = threading.RLock()
        self._adapt()
        if not self._by_id:
            raise ServerUnavailableError(f"none of the servers of table {self._name!r} can be reached")
        roster.fills.add(self)

    def __getitem__(self, shard_id: int) -> Writer:
        return self._by_id[shard_id]

    def find(self, shard_id: int) -> Writer | None:
        """Return the writer of a shard; None: the shard is no longer in the map."""
        return self._by_id.get(shard_id)

    def __iter__(self) -> Iterator[Writer]:
        return iter(list(self._by_id.values()))

    def __contains__(self, shard_id: int) -> bool:
        return shard_id in self._by_id

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def acknowledged(self) -> int:
        """Acknowledged rows, including those of shards that were lost since."""
        return self._given_up + sum(writer.acknowledged for writer in self)

    @property
    def in_flight(self) -> int:
        """Appended rows that are not yet acknowledged."""
        return sum(writer.in_flight for writer in self) + sum(block.count for block in self._orphans)

    @property
    def away(self) -> list[int]:
        """Ids of the shards whose servers do not answer at present, or no longer have the table."""
        return [shard_id for shard_id in self._by_id if self.is_away(shard_id)]

    @property
    def has_changed(self) -> bool:
        """Whether the roster has changed since the last `follow`; cheap."""
        return self._roster.members is not self._seen

    def is_away(self, shard_id: int) -> bool:
        """Whether a shard gets no rows at present, because its server does not answer or no longer has the table."""
        writer = self._by_id[shard_id]
        return writer.is_failing or writer.is_table_gone

    def follow(self) -> None:
        """Switch to the shards of the newest map that the roster knows. Never waits for a server."""
        self._roster.heard(max((writer.shards_version for writer in self), default=0))
        away = self.away
        # A server that was removed may not know the newest map, and perhaps no stream writes to the others.
        self._roster.poll(every_s=AWAY_POLL_S if away else _MAP_POLL_S)
        for shard_id in away:
            self._report(shard_id)
        if self.has_changed or self._orphans or time.monotonic() >= self._retry_at:
            self._adapt()

    def choose(self, left: int | None = None, rows: int = 0) -> int:
        """Return the emptier of two random shards that get new rows, for the next rows of a stream.

        Args:
            left: the shard that the stream leaves; None: the stream is new.
            rows: number of rows that the stream has written there.

        Raises:
            ServerUnavailableError: all servers were unreachable for `reconnect_timeout_s`.
            ReplayError: the table was dropped.
        """
        self.follow()
        if not self._there():
            with LongWait(f"a writer of table {self._name!r}", self._explain_absence):
                self._await_a_shard()
        there = self._there()
        with self._guard:
            if left is not None:
                self._streams[left] -= 1
                self._turns += rows > 0
                self._rows_of_turns += rows
            chosen = self._emptier(there)
            self._streams[chosen] += 1
        return chosen

    def _explain_absence(self, waited_s: float) -> str:
        limit_s = self._reconnect_timeout_s
        return f"none of its servers answered for {waited_s:g} s; it fails after {limit_s:g} s unless one returns"

    def _await_a_shard(self) -> None:
        deadline = time.monotonic() + self._reconnect_timeout_s
        while not self._there():
            self._raise_if_dropped()
            if time.monotonic() >= deadline:
                raise ServerUnavailableError(f"none of the servers of table {self._name!r} can be reached")
            time.sleep(_POLL_S)
            self.follow()

    def inserted(self, shard_id: int) -> int:
        """See `RowSource`."""
        writer = self._by_id.get(shard_id)
        return 0 if writer is None else writer.inserted

    def coming(self, shard_id: int) -> int:
        """See `RowSource`. Each stream of the shard is expected to write as many rows there as streams did so far."""
        writer = self._by_id.get(shard_id)
        per_stream = self._rows_of_turns / self._turns if self._turns else 1.0
        return round(self._streams[shard_id] * per_stream) + (0 if writer is None else writer.in_flight)

    def flush(self, deadline: float) -> None:
        """Wait until all rows are acknowledged, including those for servers that are away.

        Raises:
            DeadlineExceededError: timed out.
            ReplayError: a server refused rows, or the table was dropped.
        """
        with LongWait(f"a writer of table {self._name!r} on {len(self)} servers", self._explain):
            self._flush(deadline)

    def _first_wait(self) -> replay_pb2.WaitStats | None:
        """Ask the servers that are there what inserts wait for; None: they wait for nothing, or nobody knows."""
        for member in self._seen:
            if member.id in self._by_id and not self.is_away(member.id):
                found = member.session.connection.first_wait(self._name, FOR_INSERTS)
                if isinstance(found, replay_pb2.WaitStats):
                    return found
        return None

    def _explain(self, waited_s: float) -> str:
        found, away = self._first_wait(), ", ".join(map(str, self.away))
        because = f"; the servers of these shards are away: {away}" if away else ""
        return explained(self._name, waited_s, found) + because

    def _flush(self, deadline: float) -> None:
        began = time.monotonic()
        while True:
            self.follow()
            until = min(deadline, time.monotonic() + _FLUSH_S)
            if self._is_flushed(until) and not self._orphans:
                return
            self._raise_if_dropped()
            if time.monotonic() >= deadline:
                away = ", ".join(str(member) for member in self._seen if member.id in self.away)
                because = f"; these are away: {away}" if away else ""
                refusal = DeadlineExceededError(
                    f"{self.in_flight:,} rows of table {self._name!r} were not acknowledged in time{because}"
                )
                found = self._first_wait() if deadline > began else None
                raise refusal if found is None else too_late(refusal, self._name, round(deadline - began, 3), found)
            time.sleep(max(0.0, min(_POLL_S, until - time.monotonic())))

    def abort(self) -> None:
        """Close all writers without a flush, and report to each server how many rows the other shards had."""
        with ExitStack() as closing:  # closes all, even if one raises
            closing.callback(self._tell)
            closing.callback(self._roster.fills.remove, self)
            for writer in self:
                closing.callback(writer.abort)

    def unacknowledged_rows(self) -> dict[str, Array]:
        """Return unacknowledged rows, shard by shard; see `Writer.unacknowledged_rows`."""
        parts = [*(writer.unacknowledged_rows() for writer in self), *(block.columns() for block in self._orphans)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    @property
    def _name(self) -> str:
        return self._roster.members[0].table.name

    def _adapt(self) -> None:
        """Open writers for new shards, and give up the writers of lost shards."""
        with self._guard:
            members, self._retry_at = self._roster.members, math.inf
            for member in members:
                if member.is_active and member.id not in self._by_id:
                    self._open(member)
            self._active = [member.id for member in members if member.is_active and member.id in self._by_id]
            for shard_id in set(self._by_id).difference(member.id for member in members):
                self._give_up(shard_id)
            if self._orphans and (there := self._there()):
                # All blocks go to the same shard, because an episode may be in several blocks.
                self._by_id[self._emptier(there)]._adopt(self._orphans)
                self._orphans = []
            self._seen = members

    def _open(self, member: Member) -> None:
        try:
            self._by_id[member.id] = member.table._writer_with(self._options)
            self._opened[member.id] = member.description
        except ServerUnavailableError as error:
            log.warning("%s gets no rows of this writer now: %s", member, error)
            self._retry_at = time.monotonic() + _RETRY_S

    def _report(self, shard_id: int) -> None:
        """Report a shard's last known number of rows to the other servers, unless that was reported already."""
        inserted = self._by_id[shard_id].inserted
        if not self._opened[shard_id].inserted <= inserted or self._reported.get(shard_id) == inserted:
            return
        self._reported[shard_id] = inserted
        self._roster.report(shard_id, report_of(self._opened[shard_id], inserted))

    def _tell(self) -> None:
        """Tell each server how many rows were inserted into the other shards.

        If a shard is given up later, this writer may be the only one that knows how many rows that shard had.
        """
        heard = {shard_id: writer.inserted for shard_id, writer in self._by_id.items()}
        self._roster.tell({id: report_of(self._opened[id], inserted) for id, inserted in heard.items() if inserted})

    def _give_up(self, shard_id: int) -> None:
        self._report(shard_id)
        writer = self._by_id.pop(shard_id)
        blocks = writer._give_up()
        self._given_up += writer.acknowledged
        self._orphans += blocks
        if blocks:
            rows = sum(block.count for block in blocks)
            log.warning(
                "shard %d of table %r has gone: its %d unacknowledged rows go to another", shard_id, self._name, rows
            )

    def _is_flushed(self, until: float) -> bool:
        for writer in self:
            try:
                writer.flush_until(until)
            except (DeadlineExceededError, ServerUnavailableError):
                return False
            except ReplayError:
                if not writer.is_table_gone:
                    raise
                return False
        return True

    def _raise_if_dropped(self) -> None:
        """Raise the error of a writer if no server has the table any more."""
        if self._by_id and all(writer.is_table_gone for writer in self):
            next(iter(self)).flush(timeout_s=0.0)

    def _there(self) -> list[int]:
        return [shard_id for shard_id in self._active if shard_id in self._by_id and not self.is_away(shard_id)]

    def _emptier(self, there: list[int]) -> int:
        two = self._random.choice(there, min(2, len(there)), replace=False).tolist()
        emptier: int = min(two, key=self._fill)
        return emptier

    def _fill(self, shard_id: int) -> int:
        return min(self._seen[0].description.capacity, self._roster.fills.rows(shard_id))
