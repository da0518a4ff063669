"""The protocol of writers and learners without I/O, against simulated servers and networks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_client import (
    ClosedError,
    DeadlineExceededError,
    LimitedError,
    ReplayError,
    SequenceTooOldError,
    ServerUnavailableError,
    TableEmptyError,
    TableResetError,
    WriterUnknownError,
)
from replay_client._transport.attempts import Attempts
from replay_client._transport.pending import PendingRequests
from replay_client._writing.outbox import SentBlock
from replay_client._writing.writing import WriterOptions, Writing
from replay_client.results.description import TableDescription
from replay_proto.framing import column_views
from replay_proto.schema import Column, Schema
from replay_proto.v1 import replay_pb2

SCHEMA = Schema({"number": Column("int64")})
TABLE = TableDescription("t", b"", SCHEMA, 1000, "uniform", {}, None, 0, 0, 2000, SCHEMA.row_bytes)
OPTIONS = WriterOptions(
    streams=1, block_rows=3, max_blocks_in_flight=4, min_delay_s=0.1, max_delay_s=60.0, reconnect_timeout_s=60.0
)
STEPS = ("append", "append", "append", "send", "send", "apply", "apply", "answer", "answer", "break", "reset", "forget")


@dataclass
class Server:
    """Applies inserts exactly once, and remembers its latest writers."""

    last: dict[bytes, int] = field(default_factory=dict)
    stored: list[int] = field(default_factory=list)

    def apply(self, message: bytes) -> ReplayError | bytes:
        request = replay_pb2.WriteRequest.FromString(message)
        known, sequence = self.last.get(request.writer_id), request.insertion.sequence
        if known is None and sequence != 1:
            return WriterUnknownError("unknown", reason="WRITER_UNKNOWN")
        if known is None or sequence == known + 1:
            count = request.insertion.row_count
            self.stored += column_views(SCHEMA, memoryview(request.rows), count)["number"].tolist()
            self.last[request.writer_id] = sequence
        else:
            assert sequence <= known, "the writer skipped a number"
        return replay_pb2.WriteResponse(sequence=sequence).SerializeToString()


class Simulation:
    """A writer, a server, and a connection that loses what is under way when it breaks."""

    def __init__(self) -> None:
        self.writing = Writing(TABLE, OPTIONS, timeout_s=30.0, wake=lambda: None)
        self.server = Server()
        self.sent: deque[bytes] = deque()
        self.replies: deque[ReplayError | bytes] = deque()

    def append(self, number: int) -> bool:
        self.writing.outbox.check()
        return self.writing.episodes.append(0, {"number": number}, None)

    def send(self) -> None:
        request = self.writing.pending.next_to_send()
        if request is not None:
            self.sent.append(b"".join(request.parts()))

    def apply(self) -> None:
        if self.sent and not any(isinstance(reply, ReplayError) for reply in self.replies):
            self.replies.append(self.server.apply(self.sent.popleft()))

    def answer(self) -> None:
        if not self.replies:
            return
        reply = self.replies.popleft()
        if isinstance(reply, ReplayError):
            self.disconnect(reply)
        else:
            self.writing.outbox.answered(self.writing.pending.answered(), reply)

    def disconnect(self, error: ReplayError) -> None:
        self.sent.clear()
        self.replies.clear()
        self.writing.pending.broken()
        try:
            self.writing.pending.failed(error, now=0.0)
        except ReplayError as failure:
            self.writing.outbox.failed(failure)


@given(st.lists(st.sampled_from(STEPS), max_size=200))
def test_rows_are_stored_once_and_in_order_whatever_the_network_loses(steps: list[str]) -> None:
    simulated = Simulation()
    appended = 0
    for step in steps:
        if step == "append":
            appended += simulated.append(appended)
        elif step in ("send", "apply", "answer"):
            getattr(simulated, step)()
        elif step == "break":
            simulated.disconnect(ServerUnavailableError("away"))
        elif step == "reset" and simulated.writing.pending.requests and not simulated.server.stored:
            simulated.disconnect(TableResetError("reset"))
        elif step == "forget" and not simulated.writing.pending.requests:
            simulated.server.last.clear()
    for _ in range(appended + len(steps)):
        simulated.writing.outbox.hand_over()
        for each in (simulated.send, simulated.apply, simulated.answer):
            each()
    assert simulated.server.stored == list(range(appended))
    assert simulated.writing.outbox.acknowledged == appended


def test_a_block_that_the_server_applied_long_ago_is_acknowledged() -> None:
    simulated = Simulation()
    assert all(simulated.append(number) for number in range(6))
    simulated.send()
    simulated.disconnect(SequenceTooOldError("old"))
    outbox = simulated.writing.outbox
    assert (outbox.acknowledged, outbox.in_flight) == (3, 3)


def test_a_forgotten_writer_that_may_have_inserted_stops() -> None:
    simulated = Simulation()
    assert all(simulated.append(number) for number in range(3))
    simulated.send()
    simulated.disconnect(ServerUnavailableError("away"))
    simulated.send()
    simulated.disconnect(WriterUnknownError("unknown"))
    for _ in range(2):
        with pytest.raises(WriterUnknownError):
            simulated.append(3)
    assert simulated.writing.unacknowledged_rows()["number"].tolist() == [0, 1, 2]


def test_a_temporary_error_is_raised_once_and_sending_waits_for_the_next_call() -> None:
    simulated = Simulation()
    outbox = simulated.writing.outbox
    outbox.failed(ServerUnavailableError("away"))
    with pytest.raises(ServerUnavailableError):
        simulated.append(0)
    assert [outbox.is_paused, simulated.append(0), outbox.is_paused] == [True, True, False]
    outbox.close()
    with pytest.raises(ClosedError):
        simulated.append(1)


def test_streams_reconnect_for_as_long_as_they_are_told() -> None:
    pending: PendingRequests[SentBlock] = PendingRequests(reconnect_timeout_s=10.0, keep_refused=True)
    away = ServerUnavailableError("away")
    pauses = [pending.failed(away, now) for now in np.linspace(0.0, 9.9, 20)]
    assert 0 < pauses[0] < pauses[-1] < 1
    for _ in range(2):
        with pytest.raises(ServerUnavailableError):
            pending.failed(away, now=10.0)
        assert pending.failed(away, now=20.0) > 0, "the next call retries"
        with pytest.raises(TableEmptyError):
            pending.failed(TableEmptyError("empty"), now=20.0)
        pending.failed(away, now=0.0)


def test_a_call_is_repeated_until_its_deadline_and_says_how_often() -> None:
    away, late = ServerUnavailableError("away"), DeadlineExceededError("late")
    attempts = Attempts(deadline=10.0)
    assert 0 < attempts.failed(away, now=0.0) < 1
    with pytest.raises(ServerUnavailableError):
        attempts.failed(late, now=5.0)
    with pytest.raises(ServerUnavailableError):
        attempts.failed(away, now=10.0)
    for refusal in (LimitedError("no", reason="LIMITED"), DeadlineExceededError("no", reason="WAITED_TOO_LONG")):
        attempts = Attempts(deadline=10.0)
        attempts.failed(away, now=0.0)
        with pytest.raises(type(refusal)):
            attempts.failed(refusal, now=1.0)
        assert refusal.attempts == 2, "the first attempt may have been applied"
