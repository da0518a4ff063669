"""Measures what calls cost others that are begun and left, for each RPC of the service.

    python -m tests.faults.left_calls --calls 1000

A caller with the least rights that reach an RPC begins many calls of it, and leaves them in one of the `WAYS`. Requests
are built from the service's descriptors, so a new RPC is measured without being listed here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
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
from rich.progress import track

from tests.attacks.arena import OWNER, Arena
from tests.attacks.attack import Setup, Target, bearer
from tests.attacks.bystander import Record
from tests.attacks.memory import MemoryWatch
from tests.support.access import ADMIN, ALL, MINE, READ, WRITE
from tests.support.caller import table_config
from tests.support.deadlines import wait_until
from tests.support.http2 import GRPC_HEAD, Http2, RawFrames, header_block, opening
from tests.support.refusals import code_of
from tests.support.wire import METHODS, SERVICE

ALLOWED_MS: Final = 25.0
"""Allowed increase of others' p99."""
ALLOWED_MB: Final = 50.0
GIVEN_BACK_MB: Final = 25.0
"""Memory that need not be given back."""
GIVEN_BACK_S: Final = 10.0
"""Time after which memory is given back, and no call runs."""
_TABLE: Final = f"{MINE}left"
_PER_CONNECTION: Final = 100
_LARGE: Final = (8 << 20) - 1024
_CANCEL: Final = 8
"""HTTP/2's error code of canceled streams."""
_PATIENCE_S: Final = 0.05
_TIMEOUT_S: Final = 20.0


@dataclass(frozen=True)
class Cost:
    """Cost of the calls of one RPC, left in one way."""

    method: str
    way: str
    token: str
    alone: Record
    beside: Record
    rise_mb: float
    left_mb: float
    """Memory that was not given back."""
    active: int
    """Calls that still run."""

    def line(self) -> str:
        """A row of a table in Markdown."""
        return (
            f"| {self.method} | {self.way} | {self.token} | {self.beside.p99_ms:.1f} | {self.beside.errors.total()} "
            f"| {max(0.0, self.rise_mb):.0f} | {max(0.0, self.left_mb):.0f} | {self.active} |"
        )

    def faults(self) -> Iterator[str]:
        """What is beyond the limits."""
        what = f"{self.method}, {self.way}"
        if self.beside.p99_ms > self.alone.p99_ms + ALLOWED_MS:
            yield f"{what}: p99 {self.beside.p99_ms:.1f} ms, alone {self.alone.p99_ms:.1f} ms"
        if self.beside.errors:
            yield f"{what}: errors of others: {dict(self.beside.errors)}"
        if self.rise_mb > ALLOWED_MB:
            yield f"{what}: {self.rise_mb:.0f} MB of memory"
        if self.left_mb > ALLOWED_MB:
            yield f"{what}: {self.left_mb:.0f} MB were not given back"
        if self.active:
            yield f"{what}: {self.active} calls run that nobody waits for"


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
    tokens = {"read": READ, "write": WRITE, "admin": ADMIN, "all": ALL, "all tables": OWNER}
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


def _withhold(target: Target, path: str, token: str, _message: bytes, calls: int, stack: ExitStack) -> None:
    part = GRPC_HEAD.pack(0, _LARGE) + bytes(_LARGE - 1)
    link = stack.enter_context(Http2(target.connect_tls()))
    for number in [link.begin(path, bearer(token)) for _ in range(calls)]:
        link.send(number, part, patience_s=_PATIENCE_S)


def _hang_up(target: Target, path: str, token: str, message: bytes, calls: int, stack: ExitStack) -> None:
    _send_whole(target, path, token, message, calls, stack, hangs_up=True)


def _never_read(target: Target, path: str, token: str, message: bytes, calls: int, stack: ExitStack) -> None:
    _send_whole(target, path, token, message, calls, stack, hangs_up=False)


def _send_whole(
    target: Target, path: str, token: str, message: bytes, calls: int, stack: ExitStack, *, hangs_up: bool
) -> None:
    block, body = header_block(path, bearer(token)), GRPC_HEAD.pack(0, len(message)) + message
    link = stack.enter_context(RawFrames(target.connect_tls(), reads=False))
    for number in range(1, 2 * calls, 2):
        link.send([opening(number, block), DataFrame(number, body, flags=["END_STREAM"])])
    if hangs_up:
        link.send([RstStreamFrame(number, _CANCEL) for number in range(1, 2 * calls, 2)])


Leave = Callable[[Target, str, str, bytes, int, ExitStack], None]
WAYS: Final[dict[str, Leave]] = {
    "the last byte withheld": _withhold,
    "canceled at once": _hang_up,
    "reply never read": _never_read,
}


def active(arena: Arena, method: str) -> int:
    """How many calls of an RPC run, besides the one that asks."""
    return arena.owner.method(method).active - (method == "Stats")


def measure(arena: Arena, method: str, way: str, calls: int, alone_s: float) -> Cost:
    """Begin calls of an RPC, leave them, and close their connections."""
    target = arena.target()
    for table in arena.owner.table_names():
        if table.startswith(MINE):
            arena.owner.table(table).drop()
    name, token = least_token(target, method)
    arena.mine("left", capacity=1000).insert(np.arange(1000))
    path, message = f"/{SERVICE.full_name}/{method}", request_of(method).SerializeToString()
    arena.bystander.take()
    time.sleep(alone_s)
    alone = arena.bystander.take()
    with MemoryWatch(arena.server.pid) as memory:
        with ExitStack() as stack:
            for start in range(0, calls, _PER_CONNECTION):
                with suppress(OSError):
                    WAYS[way](target, path, token, message, min(_PER_CONNECTION, calls - start), stack)
        beside, rise_mb = arena.bystander.take(), memory.rise_mb
        with suppress(AssertionError):
            wait_until(lambda: not active(arena, method) and memory.now_mb < GIVEN_BACK_MB, "it is over", GIVEN_BACK_S)
    return Cost(method, way, name, alone, beside, rise_mb, memory.now_mb, active(arena, method))


def run(methods: tuple[str, ...] = METHODS, calls: int = 1000, alone_s: float = 2.0) -> list[Cost]:
    """Measure each RPC in each way."""
    costs = []
    arena = Arena(Setup())
    try:
        for method in track(methods, description="calls that are left"):
            costs += [measure(arena, method, way, calls, alone_s) for way in WAYS]
    finally:
        arena.close()
    return costs


def main(*, calls: Annotated[int, Parameter(validator=Number(gte=1))] = 1000) -> None:
    """Measure, and print a table.

    Args:
        calls: calls of each RPC in each way.
    """
    costs = run(calls=calls)
    print("| RPC | way | rights | others' p99, ms | errors | memory, MB | not given back, MB | still active |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for cost in costs:
        print(cost.line())
    faults = [fault for cost in costs for fault in cost.faults()]
    print(f"{len(METHODS)} RPCs, {len(costs)} measurements, {len(faults)} beyond the limits")
    if faults:
        raise SystemExit("\n".join(faults))


if __name__ == "__main__":
    run_app(new_app("python -m tests.faults.left_calls", __doc__, main))
