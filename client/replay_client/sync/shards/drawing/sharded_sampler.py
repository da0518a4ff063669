"""Draws batches from a table on several servers, and sends each priority update to the shard that holds the row.

Each round divides one or more batches among the shards in proportion to their masses, requests the rows with a message
to each shard, and joins them in random order (`replay_client._shards.mass`). While a server is away, all rows are drawn
from the other shards. Updates for the rows of that server are held, and sent when it returns with the same table.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from replay_proto.framing import Array
from replay_proto.v1 import replay_pb2

from replay_client._learning.one_caller import OneCaller
from replay_client._learning.prefetch import FEWEST, MOST, prefetching
from replay_client._rows.buffers import Blank, ColumnBuffers
from replay_client._rows.checks import checked_keys, checked_priorities
from replay_client._rows.columns import BatchOrKeys
from replay_client._shards.keys import by_shard
from replay_client._shards.mass import shard_chances
from replay_client._shards.round import Bundle, Round, RowRequest
from replay_client._transport.long_waits import FOR_DRAWS, LongWait, explained
from replay_client.batch import Batch
from replay_client.draws import Prefetch, with_beta
from replay_client.errors import (
    DeadlineExceededError,
    ReplayError,
    ServerUnavailableError,
    TableNotFoundError,
    TableReplacedError,
)
from replay_client.results.stats import ShardReport
from replay_client.sync.sampler import Sampler
from replay_client.sync.shards.drawing.away import AwayShard
from replay_client.sync.shards.drawing.credit import Credit
from replay_client.sync.shards.drawing.nothing_to_draw import nothing_to_draw, too_small
from replay_client.sync.shards.drawing.shard_stream import ShardStream
from replay_client.sync.shards.servers.members import Member
from replay_client.sync.shards.servers.roster import AWAY_POLL_S, Roster, update_rows

log = logging.getLogger(__name__)

AWAY_AFTER_S: Final = 0.2
"""Seconds to retry a shard's server before all rows are drawn from the other shards."""
_STATE_EVERY_S: Final = 0.05
"""Age in seconds at which the last known state of a shard is requested again, if no draw has renewed it."""
_POLL_S: Final = 0.02
_FEWEST_BUNDLED: Final = 8
"""Minimum `prefetch` with which one message requests several batches, unless all servers are on this host."""
_BRIEF_S: Final = 1e-4
"""A learner that computes for less than this between batches cannot hide the time of a reply."""
_SMOOTHING: Final = 0.1
"""Share of the latest round in the mean of the learner's computing time."""
_BUNDLE_ROWS: Final = 1 << 13
_BUNDLE_BYTES: Final = 1 << 20
"""Maximum rows and bytes of several batches in one message. Larger ones gain little."""
GONE: Final = (ServerUnavailableError, TableReplacedError, TableNotFoundError)


class ShardedSampler(Sampler):
    """See the module, and `Sampler`. For use in one thread."""

    def __init__(
        self,
        roster: Roster,
        open_stream: Callable[[Member], ShardStream],
        draw: replay_pb2.Draw,
        buffers: ColumnBuffers,
        blank: Blank | None,
        *,
        prefetch: Prefetch,
        reconnect_timeout_s: float,
        random: np.random.Generator,
    ) -> None:
        """Created by `ShardedTable.sampler`.

        Args:
            roster: the shards.
            open_stream: opens a stream to a shard.
            draw: what to draw.
            buffers: memory for batches.
            blank: provides other memory, to which batches are copied; None: they stay in ``buffers``.
            prefetch: number of batches in flight.
            reconnect_timeout_s: seconds to wait if all servers are away.
            random: chooses the shards.
        """
        self._roster = roster
        self._seen = roster.members
        self._connection = self._seen[0].session.connection
        self._table = self._seen[0].description
        self._name = self._table.name
        self._members = {member.id: member for member in self._seen}
        self._open_stream = open_stream
        self._draw = draw
        self._buffers = buffers
        self._blank = blank
        batch_bytes = draw.batch_size * sum(column.row_bytes for column in buffers.columns.values())
        self._most_together = min(_BUNDLE_ROWS // draw.batch_size, _BUNDLE_BYTES // max(1, batch_bytes))
        self._reconnect_timeout_s = reconnect_timeout_s
        self._random = random
        self._is_closed = False
        self._one_caller = OneCaller("sampler")
        self._rounds: deque[Round] = deque()
        self._bundle: Bundle | None = None  # the batches of the oldest complete round
        self._streams: dict[int, ShardStream] = {}
        limit = self._seen[0].description.rate_limit
        self._credit = None if limit is None else Credit(self._name, limit, self._streams)
        self.prefetch = prefetch
        self._away: dict[int, AwayShard] = {}
        self._counted = [0, 0]  # updated rows and stale keys of ended streams; keys of unknown shards are stale
        self._updates = False  # whether priorities were ever updated; if not, the token may lack that right
        self._computing_s = 10 * _BRIEF_S  # mean time between two calls of `next()`
        self._returned_s = time.perf_counter()  # when the last batch was returned
        self._polled_at = 0.0  # when `_request` last looked at the shards, on the clock `time.monotonic`
        self._together_before = 0  # what `_together` returned then
        self._begin()

    @property
    def beta(self) -> float:
        """Exponent of the weights in future requests; `Batch.beta` is the exponent used for a batch."""
        return self._draw.beta

    @beta.setter
    def beta(self, beta: float) -> None:
        self._draw = with_beta(self._draw, beta)

    @property
    def batch_size(self) -> int:
        """Rows of each batch; for another number, create another sampler."""
        return self._draw.batch_size

    @property
    def prefetch(self) -> int:
        """Batches in flight while `next()` waits, at least 1; can be changed, also to "auto"."""
        return self._prefetching.prefetch

    @prefetch.setter
    def prefetch(self, prefetch: Prefetch) -> None:
        # A rate limiter counts batches in flight as drawn, so more of them would not arrive earlier.
        self._prefetching = prefetching(prefetch, MOST if self._credit is None else FEWEST)

    @property
    def in_flight(self) -> int:
        """Batches requested but not yet returned."""
        return self._left + sum([round.batches for round in self._rounds])

    @property
    def _left(self) -> int:
        """Batches that have arrived but were not returned yet."""
        return 0 if self._bundle is None else self._bundle.left

    @property
    def unacknowledged(self) -> int:
        """Number of messages with unacknowledged updates, except those held for servers that are away."""
        return sum(stream.unacknowledged for stream in list(self._streams.values()))

    @property
    def updated(self) -> int:
        """Number of rows updated so far, according to the servers' replies."""
        return self._counted[0] + sum(stream.updated for stream in list(self._streams.values()))

    @property
    def stale(self) -> int:
        """Number of stale keys so far, including those of lost shards."""
        return self._counted[1] + sum(stream.stale for stream in list(self._streams.values()))

    @property
    def shards_away(self) -> list[int]:
        """Ids of the shards whose servers are away, or have lost the table."""
        return sorted(self._away)

    def __repr__(self) -> str:
        draw = f"batch_size={self._draw.batch_size}, beta={self.beta}"
        return f"<ShardedSampler of table {self._name!r} on {len(self._members)} servers: {draw}>"

    def __iter__(self) -> ShardedSampler:
        return self

    def __next__(self) -> Batch:
        """Send updates and requests for another batch, and return the oldest batch in flight; see `Sampler`.

        Raises:
            ServerUnavailableError: all servers were unreachable for `reconnect_timeout_s`. Calling again retries.
            ReplayError: as for `Sampler`.
        """
        with self._one_caller.turn(), LongWait(f"a sampler of table {self._name!r}", self._explain):
            self._computing_s += _SMOOTHING * (time.perf_counter() - self._returned_s - self._computing_s)
            began_s = 0.0
            # A round is given up if none of its shards is left.
            while not began_s or not (self._left or self._rounds):
                self._request()
                began_s = time.perf_counter()
                while not self._left and self._rounds and not self._rounds[0].is_complete:
                    self._receive_from(next(iter(self._rounds[0].asked)))
            if self._credit is not None:
                self._settle(self._credit)
            self._prefetching.stepped(began_s, time.perf_counter())
            batch = self._next_batch()
            self._returned_s = time.perf_counter()
            return batch

    def request(self) -> None:
        """Send updates and requests for another batch, as `next()` does, but do not wait for the batch.

        Raises:
            ReplayError: as for `next()`.
        """
        with self._one_caller.turn():
            self._request()

    def update_priorities(self, batch_or_keys: BatchOrKeys, priorities: ArrayLike) -> None:
        """Update priorities; see `Sampler.update_priorities`. For a shard that is away, up to 65,536 updates are held.

        Raises:
            InvalidArgumentError: the keys or the priorities are invalid.
            ServerUnavailableError: keys belong to a server that is away, and was so when the table was opened.
        """
        with self._one_caller.turn():
            self._check_usable()
            keys = checked_keys(batch_or_keys)
            values = self._combined(batch_or_keys, priorities)
            self._updates = True
            self._distribute(keys, checked_priorities(values, len(keys)))

    def update(self, keys: ArrayLike, columns: Mapping[str, Any]) -> None:
        """Write mutable columns again, and wait for the replies; see `Sampler.update`.

        Raises:
            InvalidArgumentError: as for `Sampler.update`.
            ServerUnavailableError: the server of a shard is unreachable. Rows in other shards may have been updated.
        """
        self._write(*self._checked_update(keys, columns))

    def _write(self, keys: NDArray[np.int64], columns: Mapping[str, Array]) -> None:
        """See `update`."""
        with self._one_caller.turn():
            self._check_usable()
            result = update_rows(self._roster, self._table.schema, keys, columns)
            self._counted[0] += result.updated
            self._counted[1] += result.stale

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Wait until all updates are acknowledged, except those held for servers that are away; see `Sampler.flush`.

        Raises:
            DeadlineExceededError: timed out. The updates are kept and sent again later.
            ReplayError: as for `next()`.
        """
        with self._one_caller.turn():
            self._check_usable()
            deadline = self.deadline(timeout_s)
            with LongWait(f"a flush of a sampler of table {self._name!r}", self._explain_flush):
                self._flush(deadline)

    def cancel(self, *, is_waited_for: bool = False) -> None:
        """Close without a flush; see `Sampler.cancel`."""
        if self._connection.is_forked:
            return
        self._is_closed = True
        is_waited_for = is_waited_for or self._one_caller.is_busy
        for stream in list(self._streams.values()):
            stream.cancel(is_waited_for=is_waited_for)
        for away in list(self._away.values()):
            away.end()

    def _flush_last(self, timeout_s: float | None) -> None:
        self.flush(timeout_s=timeout_s)  # no server lets a draw of a shard wait

    def _flush(self, deadline: float) -> None:
        for shard_id, stream in list(self._streams.items()):
            if stream.has_kept:
                stream.ask_for(None)
            while shard_id in self._streams and stream.unacknowledged:
                if time.monotonic() >= deadline:
                    raise DeadlineExceededError(f"updates of table {self._name!r} were not acknowledged in time")
                self._receive_from(shard_id, deadline)

    def _explain(self, waited_s: float) -> str:
        away = ", ".join(str(away.member) for away in list(self._away.values()))
        because = f"; these are away: {away}" if away else ""
        if self._streams and not self._is_allowed:  # no server knows of this wait
            return self._refusal(waited_s, math.inf).message + because
        for member in self._present():
            found = member.session.connection.first_wait(self._name, FOR_DRAWS)
            return explained(self._name, waited_s, found) + because
        return f"none of the servers of table {self._name!r} can be reached{because}"

    def _explain_flush(self, waited_s: float) -> str:
        late = [self._members[shard_id] for shard_id, stream in list(self._streams.items()) if stream.unacknowledged]
        return f"waited {waited_s:g} s for answers of {', '.join(map(str, late))}; this ends when they answer again"

    @property
    def _is_allowed(self) -> bool:
        """Whether there are rows to draw, and the rate limiters allow a batch."""
        if self._credit is not None:
            return self._credit.allows(self._draw.batch_size)
        return any(stream.state.drawable for stream in list(self._streams.values()))

    def _refusal(self, waited_s: float, wait_s: float) -> ReplayError:
        """Return the error of a batch that was not allowed in time. Any thread may call this."""
        shown = (self._name, waited_s, wait_s, list(self._present()))
        if self._credit is None:
            return nothing_to_draw(*shown)
        found = None if self._credit.drawable else too_small(*shown)
        return found or self._credit.refusal(self._draw.batch_size, waited_s, wait_s)

    def _present(self) -> Iterator[Member]:
        """Yield the shards whose servers are there. Any thread may call this."""
        return (member for member in list(self._members.values()) if member.id not in self._away)

    def _request(self) -> None:
        self._check_usable()
        now = time.monotonic()
        missing = self.prefetch - self.in_flight
        is_early = self._together_before > 1 and missing < min(self._together_before, self.prefetch)
        if is_early and now - self._polled_at < _STATE_EVERY_S:
            return  # most calls, if one message requests the batches of several of them
        together = self._together_before = self._together()
        is_due = together == 1 or missing >= together
        self._polled_at = now
        self._follow()
        self._welcome_back()
        if is_due:
            self._learn_states(self._streams)
            self._tell_largest()
        while (missing := self.prefetch - self.in_flight) >= together and self._may_begin():
            self._begin_step(min(missing, together))
        self._ask_idle(are_updates_sent=is_due)

    def _distribute(self, keys: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Pass updates on to the streams of their shards, which send them with the next request.

        If the sampler is dropped without a flush, its streams still send them.

        Raises:
            ReplayError: keys belong to a shard that was never opened; see `Roster.open`.
        """
        parts = list(by_shard(keys, values))
        unknown = [id for id, *_ in parts if id not in self._streams and id not in self._away]
        if unknown:
            self._roster.open(unknown)
            self._follow()
        for shard_id, local, priorities in parts:
            if shard_id in self._streams:
                self._streams[shard_id].keep(local, priorities)
            elif shard_id in self._away:
                self._away[shard_id].hold(local, priorities)
            else:
                self._counted[1] += len(local)

    def _begin(self) -> None:
        """Open all streams, and wait for the states of the shards."""
        for member in self._members.values():
            self._open(member)
        self._learn_states(self._streams)

    def _open(self, member: Member) -> None:
        """Open the stream to a shard. If its server cannot be reached, the shard is away until it is back."""
        try:
            stream = self._open_stream(member)
        except ServerUnavailableError as error:
            self._lose(member, error)
        else:
            self._streams[member.id] = stream
            stream.ask_for(None)

    def _learn_states(self, shard_ids: Iterable[int]) -> None:
        """Process the pending replies of these shards; for each shard, stop before the first reply with a batch."""
        for shard_id in list(shard_ids):
            while (stream := self._streams.get(shard_id)) and stream.is_asked and not stream.next_is_batch:
                self._receive_from(shard_id)

    def _may_begin(self) -> bool:
        """Return whether the rate limiters allow another batch. If no batch is in flight, block until they do.

        Raises:
            ReplayError: the draw's time limit expired while blocked; see `_refusal`.
        """
        if self._credit is None or self._credit.charge(self._draw.batch_size * (self.in_flight + 1), whole=True):
            return True
        if self.in_flight:
            return False
        self._await_credit(self._credit)
        return True

    def _settle(self, credit: Credit) -> None:
        """Spend the samples for one batch. If other learners took them first, wait for more."""
        rows = self._draw.batch_size
        while not credit.has(rows):
            charging = next((shard_id for shard_id, stream in self._streams.items() if stream.charging), None)
            if charging is None:
                self._await_credit(credit)
            else:
                self._ask_idle()
                self._receive_from(charging)
        credit.spend(rows)

    def _await_credit(self, credit: Credit) -> None:
        """Wait until the rate limiters allow a batch.

        Raises:
            ReplayError: see `_refusal`.
        """
        rows, began = self._draw.batch_size, time.monotonic()
        for attempt in itertools.count():
            self._await_a_shard()
            self._refresh()
            is_allowed = credit.charge(rows, whole=True)
            if is_allowed and credit.has(rows):
                return
            is_charged = is_allowed or credit.charge(rows, whole=False)
            waited_s = time.monotonic() - began
            if is_charged and (attempt == 0 or waited_s < self._draw.wait_s):
                continue
            if waited_s >= self._draw.wait_s:
                self._refresh()
                refusal = self._refusal(waited_s, self._draw.wait_s)
                credit.give_back(credit.held)
                self._refresh()
                raise refusal
            if not self._make_room(credit):
                time.sleep(credit.pause_s(rows))

    def _make_room(self, credit: Credit) -> bool:
        """Make room in a shard where inserts wait, if another shard has room; return whether that was possible."""
        found = credit.move()
        if found is None:
            return False
        held = credit.held
        self._streams[found.source].charge(found.samples)
        self._refresh()
        if found.target in self._streams:
            self._streams[found.target].charge(held - credit.held)
        self._refresh()
        return True

    def _refresh(self) -> None:
        """Send charges and updates, and wait for the states of all shards."""
        for stream in self._streams.values():
            stream.ask_for(None)
        for shard_id in list(self._streams):
            while shard_id in self._streams and self._streams[shard_id].is_asked:
                self._receive_from(shard_id)

    def _end_credit(self, stream: ShardStream) -> None:
        if self._credit is not None:
            self._credit.ended(stream)

    def _together(self) -> int:
        """Return how many batches to request in one message, so that those in flight still hide the time of a reply."""
        if self._credit is not None:
            return 1  # a rate limiter allows them one by one
        together = 1 if self.prefetch < _FEWEST_BUNDLED else self.prefetch // 2
        if all(stream.is_near for stream in self._streams.values()):
            # The servers share the learner's cores, and each message interrupts it.
            together = self.prefetch if self._computing_s < _BRIEF_S else self.prefetch * 3 // 4
        return max(1, min(together, self._most_together))

    def _begin_step(self, batches: int) -> None:
        """Request more batches.

        Raises:
            ServerUnavailableError: all servers are away.
            TableEmptyError: there is nothing to draw.
            DeadlineExceededError: there was nothing to draw until the draw's time limit expired.
        """
        chances = self._drawable_chances()
        smallest = {shard_id: self._streams[shard_id].state.smallest_probability for shard_id in chances}
        columns = self._buffers.blank(self._draw.batch_size * batches)
        round = Round(self._draw, chances, smallest, columns, batches=batches)
        self._rounds.append(round)
        self._request_rows(round, round.ask(self._random))

    def _request_rows(self, round: Round, requests: Iterable[RowRequest]) -> None:
        of_shards = replay_pb2.Draw()
        of_shards.CopyFrom(round.draw)
        of_shards.wait_s, of_shards.beta = 0.0, 0.0  # `Bundle` computes the weights
        of_shards.charged_apart = self._credit is not None
        for shard_id, count in requests:
            draw = replay_pb2.Draw()
            draw.CopyFrom(of_shards)
            draw.batch_size = count
            self._streams[shard_id].ask_for(draw, round)

    def _drawable_chances(self) -> dict[int, float]:
        """Wait until there are rows to draw; return the probability of each shard by id, from the latest states."""
        began = time.monotonic()
        is_fresh = False
        while True:
            self._await_a_shard()
            states = [stream.state for stream in self._streams.values()]
            drawable = [state.drawable for state in states]
            if any(drawable):
                chances = shard_chances([state.total_mass for state in states], drawable)
                return {shard_id: chance for shard_id, chance in zip(self._streams, chances, strict=True) if chance > 0}
            waited_s = time.monotonic() - began
            if is_fresh and waited_s >= self._draw.wait_s:
                raise self._refusal(waited_s, self._draw.wait_s)
            if is_fresh:
                time.sleep(_POLL_S)
            is_fresh = True
            for stream in self._streams.values():
                stream.ask_for(None)
            self._learn_states(self._streams)

    def _await_a_shard(self) -> None:
        """Wait until a server is reachable.

        Raises:
            ServerUnavailableError: no server was reachable for `reconnect_timeout_s`.
        """
        deadline = time.monotonic() + self._reconnect_timeout_s
        while not self._streams:
            if time.monotonic() >= deadline:
                raise ServerUnavailableError(f"none of the servers of table {self._name!r} can be reached")
            time.sleep(_POLL_S)
            self._check_usable()  # another thread may have closed the sampler
            self._follow()
            self._welcome_back()

    def _receive_from(self, shard_id: int, deadline: float = math.inf) -> None:
        """Process the next reply of a shard."""
        try:
            taken = self._streams[shard_id].take(deadline)
        except GONE as error:
            self._lose(self._members[shard_id], error)
            return
        self._roster.heard(self._streams[shard_id].state.shards_version)
        if taken is None:
            return
        round, batch = taken
        if batch is None:
            self._streams[shard_id].forget_drawable()
            self._redraw(round, shard_id)
        else:
            round.arrived(shard_id, batch)
            if round.is_complete:
                self._redraw_massless(round)

    def _follow(self) -> None:
        """Switch to the shards of the newest map that the roster knows."""
        if self._away:
            self._roster.poll(every_s=AWAY_POLL_S)
        if self._roster.members is self._seen:
            return
        members = self._roster.members
        there = {member.id: member for member in members}
        for shard_id in set(self._members).difference(there):
            self._give_up(shard_id)
            del self._members[shard_id]
        for shard_id, member in there.items():
            if shard_id not in self._members:
                self._open(member)
            self._members[shard_id] = member
        self._seen = members  # not earlier: if a shard cannot be opened, the next call tries again

    def _give_up(self, shard_id: int) -> None:
        """Stop drawing from a shard that is no longer in the map. Updates for its rows count as stale."""
        log.warning("%s has gone", self._members[shard_id])
        away, stream = self._away.pop(shard_id, None), self._streams.pop(shard_id, None)
        if away is not None:
            self._counted[1] += len(away.held()[0]) + away.dropped
            away.end(is_waited_for=False)
        if stream is not None:
            self._report(shard_id, stream)
            self._counted[0] += stream.updated
            self._end_credit(stream)
            self._counted[1] += stream.stale + len(stream.unacknowledged_updates()[0])
            stream.cancel()
        for round in list(self._rounds):
            self._redraw(round, shard_id)

    def _lose(self, member: Member, error: ReplayError) -> None:
        """Stop drawing from this shard. Rows that were already requested from it are drawn from the other shards."""
        log.warning("%s is away, so its rows are not drawn: %s", member, error)
        shard_id, is_replaced = member.id, not isinstance(error, ServerUnavailableError)
        away = self._away[shard_id] = AwayShard(member, is_replaced=is_replaced)
        stream = self._streams.pop(shard_id, None)
        if stream is not None:
            self._report(shard_id, stream)
            away.hold(*stream.unacknowledged_updates())
            self._counted[0] += stream.updated
            self._end_credit(stream)
            self._counted[1] += stream.stale
            stream.cancel()
        if is_replaced and all(each.is_replaced for each in self._away.values()) and not self._streams:
            raise error
        for round in list(self._rounds):
            self._redraw(round, shard_id)

    def _report(self, shard_id: int, stream: ShardStream) -> None:
        """Report the last known state of a shard, if any, to the other servers."""
        state = stream.state
        if state.inserted:
            self._roster.report(shard_id, ShardReport(state.inserted, state.size, state.total_mass))

    def _redraw(self, round: Round, *shard_ids: int) -> None:
        """Draw from the other shards the rows that a round expected from these."""
        if round not in self._rounds:
            return
        missing = [rows for shard_id in shard_ids for rows in round.without(shard_id)]
        if round.chances:
            self._request_rows(round, round.ask_again(self._random, missing))
        else:
            self._rounds.remove(round)

    def _redraw_massless(self, round: Round) -> None:
        """If any shard has mass, draw the rows from those that have: a server without mass draws its rows uniformly."""
        if not all(part.batch.total_mass for part in round.parts):
            self._learn_states(self._streams)  # the update that took the mass may have given it to a shard not drawn
        if any(stream.state.total_mass for stream in self._streams.values()):
            self._redraw(round, *{part.shard_id for part in round.parts if not part.batch.total_mass})

    def _welcome_back(self) -> None:
        """Resume drawing from shards whose servers are back, and send the updates that were held for them."""
        for shard_id, away in list(self._away.items()):
            if away.is_back:
                stream = self._open_stream(away.member)  # first: if this raises, the shard stays away
                self._streams[shard_id] = stream
                del self._away[shard_id]
                away.end()
                log.warning("%s is back", away.member)
                keys, priorities = away.held()
                self._counted[1] += away.dropped
                if len(keys):
                    stream.update_priorities(keys, priorities)
                stream.ask_for(None)
                self._learn_states([shard_id])

    def _tell_largest(self) -> None:
        """Tell each shard the largest priority in the others, because new rows get the largest of all shards."""
        if not self._updates:
            return
        *_, second, largest = sorted([0.0, 0.0, *[stream.state.largest_priority for stream in self._streams.values()]])
        for stream in self._streams.values():
            stream.hear(second if stream.state.largest_priority == largest else largest)

    def _ask_idle(self, *, are_updates_sent: bool = True) -> None:
        """Send the updates that no request has carried yet, and request states that have become old."""
        now = time.monotonic()
        for stream in self._streams.values():
            is_old = now - stream.state_at > _STATE_EVERY_S and not stream.is_asked
            if is_old or (are_updates_sent and stream.has_kept):
                stream.ask_for(None)

    def _next_batch(self) -> Batch:
        """Return the oldest batch. Its rows must have arrived."""
        if not self._left:
            round = self._rounds.popleft()
            states = [stream.state for stream in self._streams.values()]
            self._bundle = Bundle(round, states, self._buffers.blank(round.places.size))
        assert self._bundle is not None
        batch = self._bundle.take()
        if self._blank is None:
            return batch
        columns = self._blank(batch.batch_size)
        for name, column in columns.items():
            np.copyto(column, batch.columns[name])
        return replace(batch, columns=columns)
