"""Account of the samples that the shards' rate limiters have granted to one sampler."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from replay_proto.rate_limit import RateLimit

from replay_client._shards.rate_limits import Move, charges, move, spare_samples
from replay_client.errors import DeadlineExceededError, LimitedError, ReplayError, TableEmptyError
from replay_client.sync.shards.drawing.shard_stream import ShardStream

_SHORTEST_S: Final = 0.001
_LONGEST_S: Final = 0.02
"""Shortest and longest time, in seconds, between polls of the shards' states while no batch is allowed."""


class Credit:
    """See the module. The next request to a shard carries its charged samples; the reply says how many were granted."""

    def __init__(self, name: str, limit: RateLimit, streams: Mapping[int, ShardStream]) -> None:
        """``limit`` is the rate limit of one shard of the table ``name``; ``streams`` lead to all shards, by id."""
        self._name = name
        self._limit = limit
        self._streams = streams
        self._balance = 0  # granted on streams that have ended, minus what was spent
        self._looked = (0.0, 0)

    @property
    def held(self) -> int:
        """Samples that were granted but not spent."""
        return self._balance + sum(stream.charged for stream in list(self._streams.values()))

    @property
    def drawable(self) -> int:
        """Rows that can be drawn from all shards together."""
        return sum(stream.state.drawable for stream in list(self._streams.values()))

    @property
    def due(self) -> int:
        """Samples that were charged but not granted yet."""
        return sum(stream.charging for stream in self._streams.values())

    def ended(self, stream: ShardStream) -> None:
        """Keep the samples granted on a stream that is being removed."""
        self._balance += stream.charged

    def spend(self, rows: int) -> None:
        """Spend samples on a batch."""
        if self._limit.samples_per_insert is not None:
            self._balance -= rows

    def has(self, rows: int) -> bool:
        """Whether the granted samples suffice for this many rows. Without a ratio, they always do."""
        return self.held >= rows or self._limit.samples_per_insert is None

    def allows(self, rows: int) -> bool:
        """Whether the table has enough rows, and the granted samples suffice for this many."""
        return self.drawable >= self._least and self.has(rows)

    def charge(self, rows: int, *, whole: bool) -> bool:
        """Charge the samples that are still missing for ``rows`` rows, as far as the shards' last states allow.

        Args:
            rows: number of rows in flight or about to be requested.
            whole: whether to charge either all missing samples or none.

        Returns:
            With ``whole``, whether all missing samples are charged; otherwise, whether this call charged any. Always
            False if the table has too few rows.
        """
        limit, needed = self._limit, rows - self.held - self.due
        if self.drawable < self._least:
            return False
        if limit.samples_per_insert is None or needed <= 0:
            return whole
        differences = self._differences
        found = charges(limit, differences, min(needed, spare_samples(limit, differences)))
        if whole and sum(found.values()) < needed:
            return False
        for shard_id, samples in found.items():
            self._streams[shard_id].charge(samples)
        return bool(found)

    def move(self) -> Move | None:
        """Return how to make room for waiting inserts; see `replay_client._shards.rate_limits.move`."""
        waiting = [shard_id for shard_id, stream in self._streams.items() if stream.state.waiting_inserts]
        return None if self._limit.samples_per_insert is None else move(self._limit, self._differences, waiting)

    def give_back(self, samples: int) -> None:
        """Give samples back to the shard with the smallest difference."""
        if samples and self._streams:
            differences = self._differences
            self._streams[min(differences, key=lambda shard: differences[shard])].charge(-samples)

    def pause_s(self, rows: int) -> float:
        """Return the seconds until the next poll, estimated from the rate of inserts since the last poll."""
        now, inserted = time.monotonic(), sum(stream.state.inserted for stream in self._streams.values())
        (before, had), self._looked = self._looked, (now, inserted)
        gained = (inserted - had) * (self._limit.samples_per_insert or 1.0)
        expected_s = (rows - self.held) * (now - before) / gained if gained > 0 else _LONGEST_S
        return min(max(expected_s, _SHORTEST_S), _LONGEST_S)

    def refusal(self, rows: int, waited_s: float, wait_s: float) -> ReplayError:
        """Return the error to raise for a batch that was not allowed in time."""
        if self.drawable < self._least:
            waited_for, have, needed, reason = "rows", self.drawable, self._least, "it has too few rows to draw"
        else:
            waited_for, have, needed = "samples", self.held, rows
            reason = "its rate limiters allow no more draws until rows are inserted"
        metadata = {"table": self._name, "waited_for": waited_for, "have": str(have), "needed": str(needed)}
        where = f"table {self._name!r} on {len(self._streams)} servers"
        if wait_s:
            message = f"{where}: waited {waited_s:.3g} s for {waited_for}: have {have}, need {needed}; {reason}"
            return DeadlineExceededError(message, reason="WAITED_TOO_LONG", metadata=metadata)
        message = f"{where}: {reason}: have {have}, need {needed}; retry later, or set a timeout to wait"
        if not self.drawable:
            return TableEmptyError(message, reason="TABLE_EMPTY", metadata=metadata)
        return LimitedError(message, reason="LIMITED", metadata=metadata)

    @property
    def _least(self) -> int:
        """Rows that the whole table must have."""
        return self._limit.min_size * len(self._streams)

    @property
    def _differences(self) -> dict[int, float]:
        """The difference of each shard by id, as if all charges were granted; see `_shards.rate_limits`."""
        return {shard_id: stream.state.difference - stream.charging for shard_id, stream in self._streams.items()}
