"""Measures what expensive messages cost other clients, by size.

    python -m tools.faults.message_cost --report docs/operations/reliability.md

One client sends messages whose fields, names and keys are chosen to be expensive. Another one makes small calls in a
loop. The longest small call that overlaps an expensive message shows how long the event loop was blocked; on a busy
machine, the CPU time of the loop's thread is used if it is less. A message may cost `ALLOWED_MS` more than an ordinary
one with as many rows or keys, or `ALLOWED_MS` if it has neither.
"""

from __future__ import annotations

import functools
import socket
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import grpc
import numpy as np
from cyclopts import Parameter
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from numpy.typing import NDArray
from replay_proto.command_line import new_app, run_app
from replay_proto.layout import MOST_ROWS_AT_ONCE
from replay_proto.v1 import replay_pb2
from rich.progress import track

from tests.support.caller import CalledTable, Caller, make_draw, make_update
from tests.support.frame_stub import HEAD, FrameLink, hello_for
from tests.support.refusals import refusal_in
from tests.support.server_process import ServerProcess
from tests.support.wire import END_GROUP, METHODS, SERVICE, START_GROUP, STREAMS, VARINT, bytes_field, tag
from tools.faults.report import document_with, write_section

ALLOWED_MS = 50.0
SIZES = (1 << 10, 1 << 15, 1 << 20, 1 << 22)
"""Bytes of the messages."""
CAPACITY = 1 << 20
"""Size of the table, large enough to choose expensive keys."""
PROBED = "large"
_SMALL = "small"
"""Another, small table, which checkpoints copy quickly."""
_NS_PER_MS = 1e6
_READ_AT_ONCE = 1 << 18
"""The server reads this much at a time. It handles frames one by one, so larger messages block it no longer."""
_TIMEOUT_S = 60.0
_ATTEMPTS = 4
"""The shortest of this many attempts counts, because stalls caused by other processes do not recur."""
_FILL = {"varints": tag(1, VARINT) + b"\0", "unknown fields": tag(1000, VARINT) + b"\0"}
_GROUP = tag(9, START_GROUP) + tag(9, END_GROUP)
_GOLDEN = 0x9E3779B97F4A7C15
_DESTROYS = ("DropTable", "ResetTable")


@dataclass(frozen=True)
class Attack:
    """A way to make messages of one method expensive."""

    method: str
    """An RPC of the service, or another label for the table of results."""
    what: str
    """A description."""
    make: Callable[[int], bytes]
    """Creates a message of about this many bytes."""
    send: Callable[[bytes], None]
    """Sends the message, and waits until it is answered or refused."""
    honest: Callable[[int], bytes] | None = None
    """Creates an ordinary message with as many rows; None: rows, if any, justify no cost."""


@dataclass
class Costs:
    """Cost of messages in milliseconds."""

    worst: dict[str, dict[int, tuple[float, str]]] = field(default_factory=lambda: defaultdict(dict))
    """Cost beyond the ordinary cost of the rows, and the attack, by method and size."""

    def add(self, attack: Attack, size: int, cost_ms: float) -> None:
        """Add a measurement."""
        if cost_ms >= self.worst[attack.method].get(size, (0.0, ""))[0]:
            self.worst[attack.method][size] = cost_ms, attack.what

    def too_expensive(self) -> list[str]:
        """Costs beyond the limit."""
        return [
            f"{method}, {size} bytes of {what}: {cost_ms:.0f} ms"
            for method, by_size in self.worst.items()
            for size, (cost_ms, what) in by_size.items()
            if cost_ms > ALLOWED_MS
        ]

    def lines(self, sizes: Sequence[int]) -> Iterator[tuple[str, ...]]:
        """A line for each method: its costs by size, and the most expensive shape."""
        for method, by_size in self.worst.items():
            yield (method, *(f"{by_size[size][0]:.1f}" for size in sizes), by_size[sizes[-1]][1])


class LoopWatch:
    """Another client: makes small calls, one after another."""

    def __init__(self, server: ServerProcess) -> None:
        """Prepare to call a server. Its main thread runs its event loop."""
        self._address = server.address
        self._loop_figures = Path(f"/proc/{server.pid}/task/{server.pid}/schedstat")
        self._calls: list[tuple[float, float, float]] = []  # begin, end, CPU time of the loop in between
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._call)

    @contextmanager
    def watching(self) -> Iterator[LoopWatch]:
        """Call until the block ends."""
        self._thread.start()
        try:
            yield self
        finally:
            self._ends.set()
            self._thread.join()

    def stall_ms(self, action: Callable[[], object]) -> float:
        """Longest wait of other calls during an operation."""
        self._calls.clear()
        began = time.perf_counter()
        action()
        ended = time.perf_counter()
        while not self._calls or self._calls[-1][0] < ended:
            time.sleep(0.001)
        overlapping = (
            min(1000 * (end - start), computed_ms)
            for start, end, computed_ms in list(self._calls)
            if start < ended and end > began
        )
        return max(overlapping, default=0.0)  # it may have happened between two calls

    def _computed_ms(self) -> float:
        """CPU time of the loop's thread."""
        return int(self._loop_figures.read_text().split()[0]) / _NS_PER_MS

    def _call(self) -> None:
        request = replay_pb2.DescribeTableRequest(table=PROBED).SerializeToString()
        with grpc.insecure_channel(self._address, (("grpc.use_local_subchannel_pool", 1),)) as channel:
            describe: Any = channel.unary_unary(f"/{SERVICE.full_name}/DescribeTable")
            while not self._ends.is_set():
                start, computed_ms = time.perf_counter(), self._computed_ms()
                describe(request, timeout=_TIMEOUT_S)
                self._calls.append((start, time.perf_counter(), self._computed_ms() - computed_ms))


class MessageCosts:
    """Measures messages to a separate server."""

    def __init__(self, folder: Path) -> None:
        """Start the server, and fill a table."""
        self.server = ServerProcess(
            folder / "log",
            *("--memory-dir", str(folder), "--checkpoint-dir", str(folder / "checkpoints")),
        )
        self._caller = Caller(self.server.address)
        self._caller.create(_SMALL)
        self._table = self._caller.create(PROBED, capacity=CAPACITY)
        for start in range(0, CAPACITY, CAPACITY // 16):
            self._table.insert(np.arange(start, start + CAPACITY // 16))

    def run(self, sizes: Sequence[int] = SIZES) -> Costs:
        """Run every attack in every size.

        Raises:
            AssertionError: a refusal is not typed, or the server failed.
        """
        costs = Costs()
        attacks = list(attacks_on(self._table))
        with LoopWatch(self.server).watching() as watch:
            for attack in track(attacks, description="costs of messages"):
                for size in sizes:
                    costs.add(attack, size, self._beyond_its_rows_ms(watch, attack, size))
                self._tidy_up()
        return costs

    def close(self) -> None:
        """End the server."""
        self._caller.channel.close()
        self.server.kill()

    def _beyond_its_rows_ms(self, watch: LoopWatch, attack: Attack, size: int) -> float:
        message = attack.make(size)
        justified_ms = 0.0
        if attack.honest is not None:
            honest = attack.honest(size)
            justified_ms = watch.stall_ms(lambda: attack.send(honest))
        least_ms = np.inf
        for _ in range(_ATTEMPTS):
            least_ms = min(least_ms, watch.stall_ms(lambda: attack.send(message)) - justified_ms)
            if least_ms < ALLOWED_MS / 2:
                break
        return max(0.0, float(least_ms))

    def _tidy_up(self) -> None:
        for name in self._caller.table_names():
            if name not in (PROBED, _SMALL):
                self._caller.table(name).drop()


def attacks_on(table: CalledTable) -> Iterator[Attack]:
    """Every attack."""
    for method in METHODS:
        send = functools.partial(_call, table.caller.channel, f"/{SERVICE.full_name}/{method}", method in STREAMS)
        for what, make in _shapes(replay_pb2.DESCRIPTOR.message_types_by_name[f"{method}Request"]):
            named = b"" if method in _DESTROYS or what.startswith("tables") else _named(method)
            yield Attack(method, what, functools.partial(_after, named, make), send)
        for what, make, honest in _with_rows(method, table):
            yield Attack(method, what, make, send, honest)
    yield from _attacks_in_frames(table.describe())
    for name, path, request in (
        ("health", "/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest),
        (
            "reflection",
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest,
        ),
    ):
        described: Any = request
        send = functools.partial(_call, table.caller.channel, path, name == "reflection")
        for what, make in _shapes(described.DESCRIPTOR):
            yield Attack(name, what, make, send)


def _named(method: str) -> bytes:
    """The table's name, encoded as in the requests of a method."""
    fields = replay_pb2.DESCRIPTOR.message_types_by_name[f"{method}Request"].fields_by_name
    name = PROBED if "table" in fields else _SMALL if "tables" in fields else ""
    return bytes_field(1, name.encode()) if name else b""


def _after(beginning: bytes, make: Callable[[int], bytes], size: int) -> bytes:
    return beginning + make(size)


def _shapes(described: Any) -> Iterator[tuple[str, Callable[[int], bytes]]]:
    """Hard-to-parse messages of any type, repeated in nested messages."""
    for what, fill in _FILL.items():
        yield what, functools.partial(_repeated, fill)
    yield "groups", functools.partial(_repeated, _GROUP)
    yield "groups in groups", functools.partial(_repeated, tag(9, START_GROUP))
    for inner in described.fields:
        if inner.message_type is not None:
            yield f"{inner.name} again and again", functools.partial(_repeated, bytes_field(inner.number, b""))
            if inner.message_type.GetOptions().map_entry or inner.name == "columns":
                yield f"{inner.name} of many names", functools.partial(_of_many_names, inner.number)
            for what, make in _shapes(inner.message_type):
                yield f"{inner.name}: {what}", functools.partial(_within, inner.number, make)
        elif inner.type in (inner.TYPE_STRING, inner.TYPE_BYTES):
            if inner.number != 15:
                yield f"a long {inner.name}", functools.partial(_long, inner.number)
            yield f"{inner.name} again and again", functools.partial(_repeated, bytes_field(inner.number, b""))
            if inner.name == "tables":
                yield "tables of many names", functools.partial(_many_texts, inner.number)
        elif inner.name == "shape":
            yield "a long shape", functools.partial(_long, inner.number)
            yield "shape again and again", functools.partial(_repeated, tag(inner.number, VARINT) + b"\1")


def _repeated(fill: bytes, size: int) -> bytes:
    return fill * (size // len(fill))


def _within(number: int, make: Callable[[int], bytes], size: int) -> bytes:
    return bytes_field(number, make(size))


def _long(number: int, size: int) -> bytes:
    return bytes_field(number, b"\x01" * size)


@functools.lru_cache(maxsize=8)
def _of_many_names(number: int, size: int) -> bytes:
    return b"".join(bytes_field(number, bytes_field(1, b"%06x" % index)) for index in range(size // 10))


@functools.lru_cache(maxsize=8)
def _many_texts(number: int, size: int) -> bytes:
    return b"".join(bytes_field(number, b"%06x" % index) for index in range(size // 8))


def _with_rows(method: str, table: CalledTable) -> Iterator[tuple[str, Callable[[int], bytes], Callable[[int], bytes]]]:
    """Messages with expensive keys or rows, and the ordinary ones for comparison."""

    def about(keys: NDArray[np.int64], last: float = 1.0) -> bytes:
        priorities = np.ones(len(keys))
        priorities[-1] = last
        if method == "Read":
            return replay_pb2.ReadRequest(table=PROBED, keys=keys.tobytes()).SerializeToString()
        kind: Any = {"Learn": replay_pb2.LearnRequest, "UpdatePriorities": replay_pb2.UpdatePrioritiesRequest}[method]
        update = make_update(keys, priorities)
        message: Message = kind(table=PROBED, table_uid=table.uid, update=update)
        return message.SerializeToString()

    if method in ("Read", "UpdatePriorities", "Learn"):
        per_key = 8 if method == "Read" else 16

        def honest(size: int) -> bytes:
            return about(np.random.default_rng(1).permutation(CAPACITY)[: size // per_key])

        for what, choose in _KEYS.items():
            yield what, lambda size, choose=choose: about(choose(size // per_key)), honest  # type: ignore[misc]
        if method != "Read":
            yield "a priority that is not a number", lambda size: about(np.arange(size // per_key), np.nan), honest
    if method == "Learn":
        many = replay_pb2.LearnRequest(table=PROBED, draw=make_draw(1), batches=256).SerializeToString()
        yield "many batches of one row", lambda _: many, lambda _: b""
    if method in ("Insert", "Write"):
        kind = {"Insert": replay_pb2.InsertRequest, "Write": replay_pb2.WriteRequest}[method]
        row = table.describe().row_bytes

        def inserted(size: int, last: float) -> bytes:
            count = min(MOST_ROWS_AT_ONCE, max(1, size // (row + 8)))
            priorities = np.ones(count)
            priorities[-1] = last
            insertion = replay_pb2.Insertion(row_count=count, priorities=priorities.tobytes())
            message: Message = kind(table=PROBED, insertion=insertion, rows=bytes(count * row))
            return message.SerializeToString()

        yield "a priority that is not a number", lambda size: inserted(size, np.nan), lambda size: inserted(size, 1.0)


def _chosen_for_a_multiplier(count: int) -> NDArray[np.int64]:
    """Live keys that collide under Fibonacci hashing (multiplication by the golden ratio)."""
    products = np.arange(CAPACITY, dtype=np.uint64) * np.uint64(_GOLDEN)
    return np.argsort(products)[:count]


_KEYS: dict[str, Callable[[int], NDArray[np.int64]]] = {
    "keys that a multiplication leads together": _chosen_for_a_multiplier,
    "keys far apart": lambda count: (np.arange(count) * 4096) % CAPACITY,
    "keys in order": lambda count: np.arange(count),
    "one key": lambda count: np.zeros(count, np.int64),
    "keys that are not live": lambda count: np.arange(count) << 32,
}


def _attacks_in_frames(described: replay_pb2.TableDescription) -> Iterator[Attack]:
    """Attacks on connections that bypass gRPC."""

    def say(message: bytes) -> None:
        link = FrameLink(described.socket)
        answers = threading.Thread(target=_receive_all, args=(link,))
        answers.start()
        with suppress(OSError):  # it may be cut off
            link.socket.sendall(message)
            link.socket.shutdown(socket.SHUT_WR)
        answers.join()
        link.close()

    def hello(size: int) -> bytes:
        content = _repeated(_FILL["unknown fields"], size)
        return HEAD.pack(len(content), 0) + content

    def greeting() -> bytes:
        content = hello_for(described, "UpdatePriorities").SerializeToString()
        return HEAD.pack(len(content), 0) + content

    def request(size: int) -> bytes:
        content = bytes_field(3, _repeated(_FILL["varints"], size))
        return greeting() + HEAD.pack(len(content), 0) + content

    def empty(size: int) -> bytes:
        return greeting() + _repeated(HEAD.pack(0, 0), min(size, _READ_AT_ONCE))

    yield Attack("frames", "a hello of unknown fields", hello, say)
    yield Attack("frames", "empty frames", empty, say)
    yield Attack("frames", "an update of varints", request, say)


def _receive_all(link: FrameLink) -> None:
    with suppress(OSError):
        while link.socket.recv(1 << 20):
            pass


def _call(channel: grpc.Channel, path: str, is_stream: bool, message: bytes) -> None:
    """Send a message to an RPC. Refusals of the service's RPCs must be typed."""
    try:
        if is_stream:
            stream: Any = channel.stream_stream(path)
            list(stream(iter([message]), timeout=_TIMEOUT_S))
        else:
            unary: Any = channel.unary_unary(path)
            unary(message, timeout=_TIMEOUT_S)
    except grpc.RpcError as error:
        if path.startswith(f"/{SERVICE.full_name}"):
            refusal_in(error)


def size_of(size: int) -> str:
    """A human-readable size."""
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def main(*, report: Annotated[Path | None, Parameter(validator=document_with("costs"))] = None) -> None:
    """Measure, and report.

    Args:
        report: document whose section on costs is written again.
    """
    with tempfile.TemporaryDirectory(prefix="costs-") as name:
        measured = MessageCosts(Path(name))
        try:
            costs = measured.run()
        finally:
            measured.close()
    heads = ("RPC, ms", *map(size_of, SIZES), "most expensive at the last size")
    for line in (heads, *costs.lines(SIZES)):
        print(f"{line[0]:20}", *(f"{cell:>8}" for cell in line[1:]))
    if found := costs.too_expensive():
        raise SystemExit("\n".join(found))
    if report is not None:
        write_section(report, "costs", heads, costs.lines(SIZES))


if __name__ == "__main__":
    run_app(new_app("python -m tools.faults.message_cost", __doc__, main))
