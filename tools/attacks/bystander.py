"""A bystander: a separate process that makes one call after another."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Protocol

import grpc
import numpy as np
from replay_proto.v1 import replay_pb2

from tools.attacks.attack import Target, bearer
from tools.attacks.processes import CONTEXT

BATCH_SIZE = 256
OFTEN_S, SLOWLY_S = 0.004, 0.04
"""Pauses between two calls: if latencies are measured, and if only errors count."""
_NEWCOMER_EVERY_S = 0.25
_TIMEOUT_S = 20.0
_NEWCOMERS_PATIENCE_S = 5.0
"""How long a newcomer tries to connect. The client library also retries, initially after 0.1 s."""
_RECONNECT_MS = 100
_PATIENCE_S = 60.0
_MS_PER_S = 1000.0


@dataclass
class Record:
    """Results of a bystander's calls."""

    waits_ms: list[float] = field(default_factory=list)
    """Durations of successful calls."""
    errors: Counter[str] = field(default_factory=Counter)
    """Counts of failed calls by status code; for new connections, with the prefix "new"."""

    def add(self, other: Record) -> None:
        """Add another record."""
        self.waits_ms += other.waits_ms
        self.errors += other.errors

    @property
    def p99_ms(self) -> float:
        """99th percentile of the latency."""
        return float(np.percentile(self.waits_ms, 99)) if self.waits_ms else 0.0

    @property
    def worst_ms(self) -> float:
        """Largest latency."""
        return max(self.waits_ms, default=0.0)


class Routine(Protocol):
    """A bystander's calls: `once` on an existing connection, `as_newcomer` on a new one each time."""

    def once(self, channel: grpc.Channel) -> None:
        """Make one call."""

    def as_newcomer(self, channel: grpc.Channel) -> None:
        """Make the first call on a new connection."""


@dataclass(frozen=True)
class Sampling:
    """A learner: draws batches from its table."""

    table: str
    token: str

    def once(self, channel: grpc.Channel) -> None:
        """Draw."""
        request = replay_pb2.SampleRequest(table=self.table, draw=replay_pb2.Draw(batch_size=BATCH_SIZE, beta=0.5))
        self._call(channel, "Sample", request.SerializeToString(), timeout=_TIMEOUT_S)

    def as_newcomer(self, channel: grpc.Channel) -> None:
        """Describe the table, as clients do first."""
        message = replay_pb2.DescribeTableRequest(table=self.table).SerializeToString()
        self._call(channel, "DescribeTable", message, timeout=_NEWCOMERS_PATIENCE_S, wait_for_ready=True)

    def _call(self, channel: grpc.Channel, method: str, message: bytes, **how: Any) -> None:
        unary: Any = channel.unary_unary(f"/replay.v1.ReplayService/{method}")
        unary(message, metadata=bearer(self.token), **how)


@dataclass(frozen=True)
class Listing:
    """A client that lists tables, for servers without tables."""

    token: str

    def once(self, channel: grpc.Channel) -> None:
        """List the tables."""
        unary: Any = channel.unary_unary("/replay.v1.ReplayService/ListTables")
        unary(b"", timeout=_TIMEOUT_S, metadata=bearer(self.token))

    as_newcomer = once


class Bystander:
    """The bystander's process, which calls until it is paused or closed."""

    def __init__(self, target: Target, routine: Routine, pause_s: float) -> None:
        """Start it; it makes a call every ``pause_s`` seconds."""
        self._pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_work, args=(target, routine, pause_s, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.take()

    def take(self) -> Record:
        """Results of the calls since the last `take`, at least one call."""
        self._pipe.send("take")
        assert self._pipe.poll(_PATIENCE_S), "the bystander hangs"
        record: Record = self._pipe.recv()
        return record

    def newcomers(self, come: bool) -> None:
        """Turn the periodic reconnects (initially on) on or off."""
        self._pipe.send("come" if come else "stay")

    def rest(self) -> None:
        """Pause the calls, for attacks that are expected to affect everyone."""
        self._pipe.send("rest")

    def resume(self) -> None:
        """Resume the calls on a new connection."""
        self._pipe.send("resume")

    def close(self) -> None:
        """Stop the process."""
        self._pipe.close()
        self._process.join(_PATIENCE_S)
        self._process.kill()


class _Worker:
    def __init__(self, target: Target, routine: Routine, pause_s: float) -> None:
        self._target = target
        self._pause_s = pause_s
        self._routine = routine
        self._lock = threading.Lock()
        self._record = Record()
        self._comes = threading.Event()
        self._comes.set()

    def make_calls(self, pipe: Connection) -> None:
        """Make calls until the pipe is closed."""
        is_at_work = True
        with self._target.channel() as channel:
            while True:
                if is_at_work:
                    self._count(lambda: self._routine.once(channel), "")
                while pipe.poll(self._pause_s):
                    match pipe.recv():
                        case "come":
                            self._comes.set()
                        case "stay":
                            self._comes.clear()
                        case "rest":
                            self._comes.clear()
                            is_at_work = False
                        case "resume":
                            self._comes.set()
                            is_at_work = True
                        case "take":
                            pipe.send(self._take())

    def come_anew(self) -> None:
        """Connect, make one call, and disconnect."""
        while self._comes.wait():
            with self._target.channel(initial_reconnect_backoff_ms=_RECONNECT_MS) as channel:
                self._count(lambda: self._routine.as_newcomer(channel), "new: ")
            time.sleep(_NEWCOMER_EVERY_S)

    def _count(self, make: Any, kind: str) -> None:
        began = time.perf_counter()
        error = ""
        try:
            make()
        except grpc.RpcError as failure:
            failed: Any = failure
            error = f"{kind}{failed.code().name}"
        took_ms = _MS_PER_S * (time.perf_counter() - began)
        with self._lock:
            if error:
                self._record.errors[error] += 1
            elif not kind:
                self._record.waits_ms.append(took_ms)

    def _take(self) -> Record:
        with self._lock:
            record, self._record = self._record, Record()
            return record


def _work(target: Target, routine: Routine, pause_s: float, pipe: Connection) -> None:
    worker = _Worker(target, routine, pause_s)
    threading.Thread(target=worker.come_anew, daemon=True).start()
    try:
        worker.make_calls(pipe)
    except (EOFError, OSError):
        return  # the test has ended


def all_of(records: Sequence[Record]) -> Record:
    """Merge several records."""
    whole = Record()
    for record in records:
        whole.add(record)
    return whole
