"""The limit on connections: clients over it are told so, counted, and admitted once there is room."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from ipaddress import ip_address

import pytest
from replay_client import ReplayClient, ServerUnavailableError
from replay_proto.v1.replay_pb2 import ListTablesRequest
from replay_server.rpc.over_grpc.connections import SPARE, Connections, lane_of

from tests.support.caller import Caller
from tests.support.http_port import FLAGS, scrape
from tests.support.server_process import ServerProcess

MOST = 3


def test_a_client_over_the_limit_is_told_so_and_admitted_once_there_is_room(
    start_server: Callable[..., ServerProcess],
) -> None:
    server = start_server("--max-connections", str(MOST), *FLAGS)
    with ExitStack() as stack:
        clients = [stack.enter_context(ReplayClient(server.address)) for _ in range(MOST)]
        for client in clients:
            assert client.tables() == []
        late = stack.enter_context(ReplayClient(server.address, timeout_s=0.3))
        for _ in range(2):
            with pytest.raises(ServerUnavailableError, match=r"at most 3 allowed \(max_connections of the server\)"):
                late.tables()
        assert scrape(server).value("replay_connections_refused_total") == 1
        server.wait_for_log("a connection from 127.0.0.1 is refused, 1 so far: its lane has 3 already")
        clients[0].close()
        patient = stack.enter_context(ReplayClient(server.address, timeout_s=20.0))
        assert patient.tables() == []  # as soon as the server has noticed
        for client in clients[1:]:
            assert client.tables() == []


def test_however_many_are_over_the_limit_each_is_told_and_counted(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server("--max-connections", "1", *FLAGS)
    over = SPARE + 8
    with ExitStack() as stack:
        callers = [stack.enter_context(Caller(server.address)) for _ in range(1 + over)]
        callers[0].server_stats()
        untold = set(callers[1:])
        ends = time.monotonic() + 30.0
        while untold and time.monotonic() < ends:
            calls = {
                caller: caller.stub.ListTables.future(ListTablesRequest(), timeout=10, wait_for_ready=True)
                for caller in untold
            }
            untold -= {caller for caller, call in calls.items() if "at most 1 allowed" in str(call.exception())}
        assert not untold
        assert scrape(server).value("replay_connections_refused_total") >= over
        callers[0].server_stats()


@pytest.mark.parametrize(("host", "lane"), [("10.0.0.7", 7), ("10.0.0.23", 7), ("2001:db8::1", 8), ("2001:db9::", 9)])
def test_the_lane_of_a_host_is_that_of_the_kernel(host: str, lane: int) -> None:
    assert lane_of(ip_address(host).packed, 16) == lane


def test_each_lane_has_a_limit_of_its_own() -> None:
    connections = Connections(1, 16)
    connections.admit("ipv4:10.0.0.1:5")
    connections.admit("ipv4:10.0.0.2:5")
    connections.admit("ipv6:%5B2001:db8::1%5D:5")
    connections.admit("unix:")
    connections.admit("ipv4:10.0.0.1:5")
    assert connections.refused == 0
