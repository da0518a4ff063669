"""Connections are spread over a port's lanes by client host."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from replay_client import ReplayClient, Stats
from replay_proto.access.serving import SEND_BUFFER_BYTES, listeners
from replay_server.rpc.over_grpc.lanes import Lanes, choose_by_host

from tests.support.access import Authority, tls_flags
from tests.support.deadlines import wait_until
from tests.support.http2 import RawFrames, header_block, opening
from tests.support.server_process import ServerProcess

LANES = 5
CONNECTIONS = 40
CALLS = 96
"""Number of calls per connection."""
ATTEMPTS = 5
PATIENCE_S = 10.0


def listen(family: socket.AddressFamily, host: str) -> Iterator[socket.socket]:
    """Listeners of several lanes."""
    port = 0
    for _ in range(LANES):
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        listener.listen()
        listener.settimeout(PATIENCE_S)
        port = listener.getsockname()[1]
        yield listener


@pytest.mark.parametrize(
    ("family", "host"),
    [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")],
    ids=["IPv4", "IPv4 that IPv6 listens for"],
)
def test_hosts_have_lanes_by_their_address(family: socket.AddressFamily, host: str) -> None:
    with ExitStack() as open_now:
        lanes = [open_now.enter_context(lane) for lane in listen(family, host)]
        port = lanes[0].getsockname()[1]
        choose_by_host(port, LANES)
        for last in [*range(1, 12)] * 2:
            source = f"127.0.0.{last}"
            open_now.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S, (source, 0)))
            accepted, address = lanes[((127 << 24) + last) % LANES].accept()
            open_now.enter_context(accepted)
            assert address[0].endswith(source)


def test_all_of_an_ipv6_network_have_one_lane() -> None:
    with ExitStack() as open_now:
        lanes = [open_now.enter_context(lane) for lane in listen(socket.AF_INET6, "::1")]
        port = lanes[0].getsockname()[1]
        choose_by_host(port, LANES)
        for _ in range(10):
            open_now.enter_context(socket.create_connection(("::1", port), PATIENCE_S))
            open_now.enter_context(lanes[0].accept()[0])


def test_connections_of_every_lane_have_a_fixed_send_buffer() -> None:
    """By default it grows to 4 MiB: large batches then leave the caches of the CPU on their way."""
    asyncio.run(_check_send_buffers())


async def _check_send_buffers() -> None:
    lanes = Lanes(10, lambda *, shares_port: [("grpc.so_reuseport", int(shares_port))])
    port = lanes.bind("127.0.0.1", 0, None)
    with ExitStack() as open_now:
        found = [open_now.enter_context(lane.dup()) for lane in listeners(port)]
        for last in range(1, 1 + 4 * len(found)):
            source = (f"127.0.0.{last}", 0)
            link = open_now.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S, source))
            link.sendall(b"x")  # silent connections are held back
        for lane in found:
            lane.settimeout(PATIENCE_S)
            accepted = open_now.enter_context(lane.accept()[0])
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * SEND_BUFFER_BYTES
    await lanes.stop(0.0)


def test_calls_of_other_hosts_do_not_come_first(start_server: Callable[..., ServerProcess]) -> None:
    """A caller that starts thousands of calls simultaneously delays only the calls of its own lane."""
    server = start_server()
    with ReplayClient(server.address, same_host=False) as client, ThreadPoolExecutor(1) as threads:
        client.stats()
        taken = [calls_before_another_one(server, client, threads) for _ in range(ATTEMPTS)]
    # How many events gRPC's threads have read when the server continues differs widely, so no single attempt decides.
    # With one lane, the median is a sixth.
    assert statistics.median(taken) < CONNECTIONS * CALLS / 8, taken


def calls_before_another_one(server: ServerProcess, client: ReplayClient, threads: ThreadPoolExecutor) -> int:
    """How many calls of a flood from another host the server takes before a call that began in the middle of it."""
    block = header_block("/replay.v1.ReplayService/Write")
    calls = [opening(2 * number + 1, block) for number in range(CALLS)]
    with ExitStack() as open_now:
        flood = []
        for _ in range(CONNECTIONS):
            plain = socket.create_connection(("127.0.0.1", server.port), PATIENCE_S, ("127.0.0.2", 0))
            flood.append(open_now.enter_context(RawFrames(plain)))
        os.kill(server.pid, signal.SIGSTOP)
        try:
            # Some of gRPC's threads handle the newest call first, others the oldest.
            for link in flood[::2]:
                link.send(calls)
            asked = threads.submit(client.stats)
            with suppress(TimeoutError):  # it is in flight when the server continues
                asked.result(0.2)
            for link in flood[1::2]:
                link.send(calls)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        taken = active_writes(asked.result(PATIENCE_S))
    wait_until(lambda: active_writes(client.stats()) == 0, "the calls of the flood have ended")
    return taken


def active_writes(stats: Stats) -> int:
    writes = stats.server.methods.get("Write")
    return writes.active if writes else 0


def test_a_new_certificate_is_taken_up_in_every_lane(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "authority")
    server = start_server(*tls_flags(authority.certify("server")))
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.set_alpn_protocols(["h2"])

    def shown_to(last: int) -> bytes | None:
        address, source = ("127.0.0.1", server.port), (f"127.0.0.{last}", 0)
        with (
            socket.create_connection(address, PATIENCE_S, source) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as link,
        ):
            return link.getpeercert(binary_form=True)

    hosts = range(1, 5)
    before = {shown_to(last) for last in hosts}
    authority.certify("server")
    after = {shown_to(last) for last in hosts}
    assert len(before) == len(after) == 1
    assert before != after
