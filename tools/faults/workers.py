"""Writers and learners that load a server until it dies, and record what they sent and what was acknowledged."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import numpy as np
from grpc_status import rpc_status
from numpy.typing import NDArray
from replay_proto.steps import WindowShape
from replay_proto.v1 import replay_pb2
from replay_server.storage.runs import GOES_ON, TERMINATED, TRUNCATED

from tests.support.caller import CalledTable, LearnStream, WriteStream, keys_of, make_draw, make_update
from tests.support.refusals import code_of
from tests.support.step_oracle import Run
from tests.support.wire_runs import step_runs

VALUES_PER_WRITER = 10**9
"""Row n of writer w has the value ``w * VALUES_PER_WRITER + n``."""
MOST_ROWS = 32
MOST_STEPS = 50
"""Maximum rows of an episode."""
_IN_FLIGHT = 8
_BATCH = 64
_WAIT_S = 30.0
_CHECKPOINT_PAUSE_S = 0.01
CHECKPOINT_SERIES = "torture"


def first_priority(values: NDArray[np.int64]) -> NDArray[np.float64]:
    """Initial priorities of rows with these values."""
    return 1.0 + (values % 97).astype(np.float64)


@dataclass(frozen=True)
class Sent:
    """An insert in flight."""

    sequence: int
    values: NDArray[np.int64]
    priorities: NDArray[np.float64]
    runs: replay_pb2.Runs | None


class Episodes:
    """Divides the rows of a stream into episodes, for tables of steps."""

    def __init__(self, stream: int, shape: WindowShape, random: random.Random) -> None:
        """Begin before the first episode."""
        self._stream = stream
        self._shape = shape
        self._random = random
        self._episode = -1
        self._step = self._length = 0

    def continued(self, values: NDArray[np.int64]) -> tuple[NDArray[np.int64], replay_pb2.Runs]:
        """Assign rows to steps.

        Returns:
            The values of the steps whose windows these rows complete, and the runs of the rows.
        """
        runs: list[Run] = []
        completed = []
        while len(values):
            if self._step == self._length:
                self._episode, self._step = self._episode + 1, 0
                self._length = self._random.randint(2, MOST_STEPS)
            rows = min(len(values), self._length - self._step)
            stop = self._step + rows
            is_over = stop == self._length
            end = self._random.choice((TRUNCATED, TERMINATED)) if is_over else GOES_ON
            runs.append((self._stream, self._episode, self._step, rows, end))
            first = max(0, self._step - self._shape.forward)
            anchors = np.arange(first, stop - 1 if is_over else max(first, stop - self._shape.forward))
            completed.append(values[0] - self._step + anchors)
            self._step, values = stop, values[rows:]
        return np.concatenate(completed), step_runs(runs)


class Worker(ABC):
    """Puts load on a table; run again after each restart of the server."""

    def __init__(self) -> None:
        """Create a worker that has sent nothing."""
        self.broken_by: Counter[str] = Counter()
        """Status codes by which the end of a server was noticed."""

    def run(self, table: CalledTable) -> None:
        """Work until the server dies.

        Raises:
            AssertionError: the server refused something.
        """
        try:
            self.work(table)
        except grpc.RpcError as error:
            if rpc_status.from_call(error) is not None:  # A killed server sends no status.
                raise AssertionError(f"the server refused: {error}") from error
            self.broken_by[code_of(error).name] += 1

    @abstractmethod
    def work(self, table: CalledTable) -> None:
        """Work forever."""


class Writer(Worker):
    """Inserts rows that identify their writer and number."""

    def __init__(self, number: int, seed: int, shape: WindowShape | None = None) -> None:
        """Create a writer that has sent nothing; ``shape``: the windows of a table of steps."""
        super().__init__()
        self.writer_id = bytes([number + 1]) * 16
        self.acknowledged: dict[int, int] = {}
        """Values by key of acknowledged rows that may be live."""
        self.pending: deque[Sent] = deque()
        """Sent and not acknowledged."""
        self.rows = 0
        """Rows acknowledged, ever."""
        self.inserts = 0
        """Inserts acknowledged, ever."""
        self._base = number * VALUES_PER_WRITER
        self._next = 0
        self._random = random.Random(seed)
        self._episodes = None if shape is None else Episodes(number, shape, self._random)

    def was_sent(self, value: int) -> bool:
        """Whether this writer has sent such a row."""
        return self._base <= value < self._base + self._next

    def next_insert(self) -> Sent:
        """Create the next insert and mark it as pending."""
        values = self._base + self._next + np.arange(self._random.randint(1, MOST_ROWS))
        self._next += len(values)
        completed, runs = (values, None) if self._episodes is None else self._episodes.continued(values)
        sequence = self.inserts + len(self.pending) + 1
        self.pending.append(Sent(sequence, values, first_priority(completed), runs))
        return self.pending[-1]

    def acknowledge(self, keys: NDArray[np.int64]) -> None:
        """Record the keys of the oldest pending insert."""
        sent = self.pending.popleft()
        assert len(keys) == len(sent.values)
        self.acknowledged.update(zip(keys.tolist(), sent.values.tolist(), strict=True))
        self.rows += len(keys)
        self.inserts += 1

    def forget_before(self, oldest: int) -> None:
        """Forget rows below this key."""
        self.acknowledged = {key: value for key, value in self.acknowledged.items() if key >= oldest}

    @abstractmethod
    def settle(self, table: CalledTable) -> None:
        """Resend unacknowledged requests until nothing is pending."""


class StreamWriter(Writer):
    """Writes on a stream, with several inserts in flight."""

    def work(self, table: CalledTable) -> None:
        """Keep the stream full."""
        stream = WriteStream(table, self.writer_id)
        try:
            while True:
                while len(self.pending) < _IN_FLIGHT:
                    self._send(stream, self.next_insert())
                self._receive(stream)
        finally:
            stream.close()

    def settle(self, table: CalledTable) -> None:
        """Resend all pending inserts over one stream."""
        stream = WriteStream(table, self.writer_id)
        for sent in tuple(self.pending):
            self._send(stream, sent)
        while self.pending:
            self._receive(stream)
        stream.close()

    def _send(self, stream: WriteStream, sent: Sent) -> None:
        stream.send(sent.values, sent.sequence, sent.priorities, sent.runs)

    def _receive(self, stream: WriteStream) -> None:
        answer = stream.receive()
        assert answer.sequence == self.pending[0].sequence
        self.acknowledge(keys_of(answer.keys))


class CallWriter(Writer):
    """Inserts call by call."""

    def work(self, table: CalledTable) -> None:
        """Insert without pauses."""
        while True:
            self._insert(table, self.next_insert())

    def settle(self, table: CalledTable) -> None:
        """Repeat the call."""
        for sent in tuple(self.pending):
            self._insert(table, sent)

    def _insert(self, table: CalledTable, sent: Sent) -> None:
        keys = table.insert(
            sent.values, sent.priorities, writer_id=self.writer_id, sequence=sent.sequence, runs=sent.runs
        )
        self.acknowledge(keys)


class Learner(Worker):
    """Draws rows, and sets the priorities of its share: one of every ``learners`` keys."""

    def __init__(self, number: int, learners: int, seed: int) -> None:
        """Create a learner that has set nothing."""
        super().__init__()
        self.acknowledged: dict[int, float] = {}
        """Priority by key, as last acknowledged."""
        self.pending: deque[dict[int, float]] = deque()
        """Updates sent and not acknowledged."""
        self.updates = 0
        """Priorities acknowledged, ever."""
        self._number = number
        self._learners = learners
        self._random = np.random.default_rng(seed)

    def work(self, table: CalledTable) -> None:
        """Draw and update, with one request in flight ahead."""
        stream = LearnStream(table)
        draw = make_draw(_BATCH, beta=0.5, wait_s=_WAIT_S)
        mine = np.zeros(0, np.int64)
        try:
            stream.send(draw=draw)
            while True:
                priorities = self._random.exponential(size=len(mine))
                stream.send(draw=draw, update=make_update(mine, priorities))
                self.pending.append(dict(zip(mine.tolist(), priorities.tolist(), strict=True)))
                mine = self._receive(stream)
        finally:
            stream.close()

    def may_be(self, key: int) -> Iterator[float]:
        """Priorities that this learner may have set for a key: the last acknowledged one, and those in flight."""
        if key in self.acknowledged:
            yield self.acknowledged[key]
        yield from (update[key] for update in self.pending if key in update)

    def settle(self, found: dict[int, float]) -> None:
        """Treat the priorities found as acknowledged, because some updates in flight arrived."""
        for update in self.pending:
            self.acknowledged.update({key: found[key] for key in update if key in found})
        self.pending.clear()
        self.acknowledged = {key: value for key, value in self.acknowledged.items() if key in found}

    def _receive(self, stream: LearnStream) -> NDArray[np.int64]:
        answer, batches = stream.receive_batches()
        if answer.HasField("update"):
            update = self.pending.popleft()
            self.acknowledged.update(update)
            self.updates += len(update)
        assert all(len(batch.keys) == _BATCH and len(batch.values) >= _BATCH for batch in batches)
        keys = np.concatenate([batch.keys for batch in batches])
        own: NDArray[np.int64] = keys[keys % self._learners == self._number]
        return own


class Checkpointer(Worker):
    """Writes checkpoints in a loop."""

    def __init__(self) -> None:
        """Create a worker that has written nothing."""
        super().__init__()
        self.written = 0
        """Checkpoints acknowledged, ever."""
        self.last = ""
        """Name of the last one acknowledged."""

    def work(self, table: CalledTable) -> None:
        """Write checkpoints forever."""
        while True:
            self.last = table.caller.checkpoint(table.name, series=CHECKPOINT_SERIES, keep=2).name
            self.written += 1
            time.sleep(_CHECKPOINT_PAUSE_S)
