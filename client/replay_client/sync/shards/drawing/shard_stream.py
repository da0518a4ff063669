"""A learner's stream to one shard: draws of any size, and the state of the shard's table with each reply."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from replay_proto.v1 import replay_pb2

from replay_client._shards.round import PartMemory, Round
from replay_client.batch import Batch
from replay_client.errors import TableEmptyError, TableResetError
from replay_client.sync.sampler import Sampler


class ShardStream(Sampler):
    """See the module. For use in one thread."""

    def __init__(self, *arguments: Any, memory: PartMemory, **options: Any) -> None:
        """See `Sampler`. ``memory`` is where the stream's batches are."""
        super().__init__(*arguments, **options)
        self.state_at = -1e9
        """When the latest state arrived, on the clock `time.monotonic`."""
        self.is_near = self._learning.is_near
        """Whether the server is on this host, and the stream copies rows from its files."""
        self._memory = memory

    @property
    def state(self) -> replay_pb2.TableState:
        """The latest state of the table."""
        return self._learning.state or replay_pb2.TableState()

    @property
    def has_kept(self) -> bool:
        """Whether updates wait for the next request."""
        return self._learning.has_kept

    @property
    def is_asked(self) -> bool:
        """Whether any reply is due."""
        return bool(self._learning.pending.requests)

    @property
    def next_is_batch(self) -> bool:
        """Whether the next reply has a batch, unless the request is refused."""
        return bool(self._learning.pending.requests and self._learning.pending.requests[0].batches)

    def keep(self, keys: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Keep checked updates for the next request."""
        self._learning.keep(keys, priorities)
        self._stream.send_pending()

    @property
    def charging(self) -> int:
        """Samples that were charged to the shard's rate limiter but not granted yet."""
        return self._learning.charges.due + self._learning.charges.asked

    @property
    def charged(self) -> int:
        """Samples that the shard's rate limiter has counted for this stream."""
        return self._learning.charges.granted

    def charge(self, samples: int) -> None:
        """Charge samples to the shard's rate limiter with the next request. A negative number gives samples back."""
        self._learning.charges.due += samples

    def hear(self, others_largest: float) -> None:
        """Tell the shard, with the next request, the largest priority in the other shards."""
        self._learning.others_largest = others_largest

    def forget_drawable(self) -> None:
        """Record that the table has no rows to draw, as the server has just replied."""
        if self._learning.state is not None:
            self._learning.state.drawable = 0

    def ask_for(self, draw: replay_pb2.Draw | None, round: Round | None = None) -> None:
        """Send the kept updates, and request the state. Unless ``draw`` is None, also request one batch for a round."""
        self._learning.ask_for(draw, asked_for=round)
        self._stream.send_pending()

    def take(self, deadline: float = math.inf) -> tuple[Round, Batch | None] | None:
        """Wait for the next reply, and return its round and batch, or None if it answers no request for a batch.

        The batch is None if the table was empty, or reset before the batch was complete.

        Raises:
            ServerUnavailableError: the server is unreachable.
            ReplayError: the server refused the request.
        """
        oldest = self._learning.pending.requests[0]
        try:
            exchange, answer = self._stream.receive(deadline)
        except (TableEmptyError, TableResetError):
            return None if oldest.asked_for is None else (oldest.asked_for, None)
        self._memory.round = exchange.asked_for
        self._learning.answered(exchange, answer)
        self.state_at = time.monotonic()
        if exchange.asked_for is None:
            return None
        batch = self._learning.batches.popleft()
        return exchange.asked_for, self._draw_over_wire(batch) if isinstance(batch, replay_pb2.Draw) else batch

    def unacknowledged_updates(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the keys int64[n] and priorities float64[n] of updates that may not have arrived."""
        return self._learning.unacknowledged_updates()
