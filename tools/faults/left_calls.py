"""Measures what calls cost others that are begun and left, for each RPC of the service.

    python -m tools.faults.left_calls --calls 1000

A caller with the least rights that reach an RPC begins many calls of it, and leaves them in one of the `WAYS`. Requests
are built from the service's descriptors, so a new RPC is measured without being listed here.

Meanwhile, another caller draws batches. Its 99th percentile depends on the machine and on what else runs there. So it
is also measured alone, just before and just after, and the calls that are left may add `ALLOWED_MS` to that.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final

import grpc
import numpy as np
from cyclopts import Parameter
from cyclopts.validators import Number
from google.protobuf.message import Message
from hyperframe.frame import DataFrame, RstStreamFrame
from replay_proto.command_line import new_app, run_app
from replay_proto.v1 import replay_pb2

from tests.support.access import ADMIN, ALL, EVERYWHERE, MINE, READ, WRITE
from tests.support.caller import table_config
from tests.support.http2 import GRPC_HEAD, Http2, RawFrames, header_block, opening
from tests.support.refusals import code_of
from tests.support.wire import METHODS, SERVICE
from tools.attacks.arena import Arena
from tools.attacks.attack import Setup, Target, bearer
from tools.attacks.bystander import Record, all_of
from tools.attacks.memory import MemoryWatch

ALLOWED_MS: Final = 25.0
"""Allowed increase of others' p99."""
ALLOWED_MB: Final = 50.0
GIVEN_BACK_MB: Final = 25.0
"""Memory that need not be given back: what the allocator keeps for later calls."""
GIVEN_BACK_S: Final = 10.0
"""Time after which memory is given back, and no call runs."""
_TABLE: Final = f"{MINE}left"
_PER_CONNECTION: Final = 100
_LARGE: Final = (8 << 20) - 1024
_CANCEL: Final = 8
"""HTTP/2's error code of canceled streams."""
_SENDING_S: Final = 3.0
_QUIET_S: Final = 0.1
"""If the server lets nothing more of the messages in for so long, they are left."""
_TIMEOUT_S: Final = 20.0
_LOOK_S: Final = 0.02


@dataclass(frozen=True)
class Spells:
    """How long the other caller is watched, in seconds."""

    alone_s: float = 1.0
    """Before the calls, and once more after them."""
    beside_s: float = 2.0
    """Beside the calls, at least."""


@dataclass(frozen=True)
class Cost:
    """Cost of the calls of one RPC, left in one way."""

    method: str
    way: str
    rights: str
    """Name of the token."""
    alone: Record
    beside: Record
    rise_mb: float
    left_mb: float
    """Memory that was not given back."""
    active: int
    """Calls that still run."""

    HEADS = ("RPC", "way", "rights", "alone ms", "beside ms", "errors", "MB", "left", "running")
    _WIDTHS = (16, 8, 6, 8, 9, 6, 5, 5, 7)

    @classmethod
    def row(cls, cells: Sequence[str]) -> str:
        """A line of at most 80 columns, names to the left and numbers to the right."""
        aligned = zip(cells, cls._WIDTHS, "<<<>>>>>>", strict=True)
        return " ".join(f"{cell:{side}{width}}" for cell, width, side in aligned)

    def line(self) -> str:
        """The row of this cost."""
        waits = (f"{self.alone.p99_ms:.1f}", f"{self.beside.p99_ms:.1f}", str(self.beside.errors.total()))
        memory = (f"{max(0.0, megabytes):.0f}" for megabytes in (self.rise_mb, self.left_mb))
        return self.row((self.method, self.way, self.rights, *waits, *memory, str(self.active)))

    def faults(self) -> Iterator[str]:
        """What is beyond the limits."""
        if self.beside.p99_ms > self.alone.p99_ms + ALLOWED_MS:
            yield f"p99 of others {self.beside.p99_ms:.1f} ms, alone {self.alone.p99_ms:.1f} ms"
        if self.beside.errors:
            yield f"errors of others: {dict(self.beside.errors)}"
        if self.rise_mb > ALLOWED_MB:
            yield f"{self.rise_mb:.0f} MB of memory, at most {ALLOWED_MB:.0f} are allowed"
        if self.left_mb > GIVEN_BACK_MB:
            yield f"{self.left_mb:.0f} MB were not given back within {GIVEN_BACK_S:.0f} s"
        if self.active:
            yield f"{self.active} calls run that nobody waits for"


def request_of(method: str) -> Message:
    """A request of an RPC about the table, from its descriptor."""
    kind: type[Message] = getattr(replay_pb2, f"{method}Request")
    made = kind()
    request: Any = made
    for field in request.DESCRIPTOR.fields:
        if field.name == "table":
            request.table = _TABLE
        elif field.name == "tables":
            request.tables.append(_TABLE)
        elif field.message_type is replay_pb2.TableConfig.DESCRIPTOR:
            getattr(request, field.name).CopyFrom(table_config(f"{_TABLE}-new"))
        elif field.message_type is replay_pb2.Draw.DESCRIPTOR:
            getattr(request, field.name).CopyFrom(replay_pb2.Draw(batch_size=256, beta=0.5))
    return made


def least_token(target: Target, method: str) -> tuple[str, str]:
    """Name and token with the fewest rights that reach an RPC. There must be no table yet, so that nothing is done."""
    tokens = {"read": READ, "write": WRITE, "admin": ADMIN, "all": ALL, "every": EVERYWHERE}
    with target.channel() as channel:
        for name, token in tokens.items():
            stream: Any = channel.stream_stream(f"/{SERVICE.full_name}/{method}")
            asked = stream(iter([request_of(method).SerializeToString()]), timeout=_TIMEOUT_S, metadata=bearer(token))
            try:
                next(asked, None)
            except grpc.RpcError as error:
                if code_of(error) is grpc.StatusCode.PERMISSION_DENIED:
                    continue
            return name, token
    raise AssertionError(f"nobody may call {method}")


@dataclass(frozen=True)
class Calls:
    """Calls to begin and leave on one connection."""

    path: str
    token: str
    message: bytes
    count: int

    @property
    def streams(self) -> range:
        """HTTP/2's numbers of the calls."""
        return range(1, 2 * self.count, 2)


def _withhold(target: Target, every: Sequence[Calls], stack: ExitStack) -> None:
    """Send all of a large message but its last byte in each call, as far as the server lets it in."""
    part = memoryview(GRPC_HEAD.pack(0, _LARGE) + bytes(_LARGE - 1))
    links: dict[Http2, dict[int, int]] = {}
    for calls in every:
        link = stack.enter_context(Http2(target.connect_tls()))
        links[link] = dict.fromkeys((link.begin(calls.path, bearer(calls.token)) for _ in range(calls.count)), 0)
    until = quiet_at = time.monotonic() + _SENDING_S
    while time.monotonic() < min(until, quiet_at):
        for link, sent in links.items():
            count = sum(_push(link, sent, call, part) for call in tuple(sent))
            link.read(0.0)
            if count:
                quiet_at = time.monotonic() + _QUIET_S


def _push(link: Http2, sent: dict[int, int], call: int, part: memoryview) -> int:
    """Send more of a call's message; return how much. Calls that are sent or have ended are forgotten."""
    with suppress(OSError):
        if not link.has_ended(call) and sent[call] < len(part):
            count = link.push(call, part[sent[call] :])
            sent[call] += count
            return count
    del sent[call]
    return 0


def _hang_up(target: Target, every: Sequence[Calls], stack: ExitStack) -> None:
    for calls in every:
        link = _send_whole(target, calls, stack)
        link.send([RstStreamFrame(number, _CANCEL) for number in calls.streams])


def _never_read(target: Target, every: Sequence[Calls], stack: ExitStack) -> None:
    for calls in every:
        _send_whole(target, calls, stack)


def _send_whole(target: Target, calls: Calls, stack: ExitStack) -> RawFrames:
    """Send whole requests on a connection that is never read from."""
    link = stack.enter_context(RawFrames(target.connect_tls(), reads=False))
    block, body = header_block(calls.path, bearer(calls.token)), GRPC_HEAD.pack(0, len(calls.message)) + calls.message
    for number in calls.streams:
        link.send([opening(number, block), DataFrame(number, body, flags=["END_STREAM"])])
    return link


WAYS: Final[dict[str, Callable[[Target, Sequence[Calls], ExitStack], None]]] = {
    "withheld": _withhold,
    "canceled": _hang_up,
    "unread": _never_read,
}
"""The last byte of the request is withheld; the call is canceled at once; the reply is never read."""


def active(arena: Arena, method: str) -> int:
    """How many calls of an RPC run, besides the one that asks."""
    return arena.owner.method(method).active - (method == "Stats")


@contextmanager
def _at_least(seconds: float) -> Iterator[None]:
    ends = time.monotonic() + seconds
    yield
    time.sleep(max(0.0, ends - time.monotonic()))


def _alone(arena: Arena, spells: Spells) -> Record:
    arena.bystander.take()
    time.sleep(spells.alone_s)
    return arena.bystander.take()


def measure(arena: Arena, method: str, way: str, calls: int, spells: Spells) -> Cost:
    """Begin calls of an RPC, leave them, and close their connections."""
    target = arena.target()
    for table in arena.owner.table_names():
        if table.startswith(MINE):
            arena.owner.table(table).drop()
    name, token = least_token(target, method)
    arena.mine("left", capacity=1000).insert(np.arange(1000))
    path, message = f"/{SERVICE.full_name}/{method}", request_of(method).SerializeToString()
    counts = [min(_PER_CONNECTION, calls - start) for start in range(0, calls, _PER_CONNECTION)]
    every = [Calls(path, token, message, count) for count in counts]
    before = _alone(arena, spells)
    with MemoryWatch(arena.server.pid) as memory:
        with ExitStack() as stack, _at_least(spells.beside_s), suppress(OSError):
            WAYS[way](target, every, stack)
        beside, rise_mb = arena.bystander.take(), memory.rise_mb
        # This reading counts, not a later one: calls that were begun may still lie in gRPC's queue, and start to end.
        left_mb, running = memory.now_mb, active(arena, method)
        until = time.monotonic() + GIVEN_BACK_S
        while (running or left_mb > GIVEN_BACK_MB) and time.monotonic() < until:
            time.sleep(_LOOK_S)
            left_mb, running = memory.now_mb, active(arena, method)
    return Cost(method, way, name, all_of([before, _alone(arena, spells)]), beside, rise_mb, left_mb, running)


def run(methods: Sequence[str], calls: int, spells: Spells, *, is_brief: bool = False) -> Iterator[Cost]:
    """Measure each of these RPCs in each way; see `Arena` for ``is_brief``."""
    arena = Arena(Setup(), is_brief=is_brief)
    try:
        for method in methods:
            for way in WAYS:
                yield measure(arena, method, way, calls, spells)
    finally:
        arena.close()


def main(*methods: str, calls: Annotated[int, Parameter(validator=Number(gte=1))] = 1000) -> None:
    """Measure, and print a row for each RPC and way as soon as it is known.

    Args:
        *methods: RPCs; all, if there are none.
        calls: calls of each RPC in each way.
    """
    print(Cost.row(Cost.HEADS), flush=True)
    costs, faults = [], []
    for cost in run(methods or METHODS, calls, Spells()):
        print(cost.line(), flush=True)
        costs.append(cost)
        faults += [f"{cost.method}, {cost.way}: {fault}" for fault in cost.faults()]
    worst_ms, worst_mb = max(cost.beside.p99_ms for cost in costs), max(cost.rise_mb for cost in costs)
    print(f"{len(costs)} measurements: p99 of others at most {worst_ms:.1f} ms, at most {worst_mb:.0f} MB")
    print(f"{len(faults)} beyond the limits", *faults, sep="\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    run_app(new_app("python -m tools.faults.left_calls", __doc__, main))
