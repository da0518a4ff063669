"""Errors for a server that cannot be reached, and for invalid addresses."""

from __future__ import annotations

import itertools
import math
import pickle
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from replay_client import InvalidArgumentError, ReplayClient, ServerUnavailableError, Table
from replay_client._transport.address import address_order, checked_address
from replay_client.sync.client import DEFAULT_TIMEOUT_S

from tests.client.conftest import COLUMNS
from tests.client.numbered import rows
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]

FIRST_CALLS: dict[str, Callable[[ReplayClient], object]] = {
    "create_table": lambda client: client.create_table("t", columns=COLUMNS, capacity=10),
    "table": lambda client: client.table("t"),
    "tables": lambda client: client.tables(),
    "drop_table": lambda client: client.drop_table("t"),
    "stats": lambda client: client.stats(),
    "checkpoint": lambda client: client.checkpoint(timeout_s=math.inf),
    "in": lambda client: "t" in client,
}


@pytest.fixture
def nobody() -> Iterator[str]:
    """A reserved address at which no server listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"localhost:{bound.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """An address at which connections are accepted but never answered."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("call", FIRST_CALLS)
def test_without_a_server_the_first_call_says_whom_it_cannot_reach_and_what_to_start(nobody: str, call: str) -> None:
    port = nobody.rpartition(":")[2]
    with ReplayClient(nobody, wait_for_server_s=0.1) as client, pytest.raises(ServerUnavailableError) as error:
        FIRST_CALLS[call](client)
    message = f"no replay server answers at {nobody}; start one with `replay-server --port {port}`"
    assert "".join(traceback.format_exception_only(error.value)).endswith(f"Error: {message}\n")  # without notes
    assert isinstance(error.value, ConnectionError)


def test_the_first_call_does_not_wait_for_as_long_as_later_ones(nobody: str) -> None:
    with ReplayClient(nobody) as client:
        began = time.monotonic()
        with pytest.raises(ServerUnavailableError):
            client.tables()
        assert time.monotonic() - began < DEFAULT_TIMEOUT_S / 2


def test_a_peer_that_says_nothing_is_no_server(silent: str) -> None:
    with ReplayClient(silent) as client:
        began = time.monotonic()
        with pytest.raises(
            ServerUnavailableError, match=f"no replay server answers at {silent} yet. If one is still starting there"
        ):
            client.tables()
        assert time.monotonic() - began < DEFAULT_TIMEOUT_S / 2


def test_a_client_that_is_told_to_waits_for_a_server_that_starts_later(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server()
    server.kill()
    found: list[Any] = []
    with ReplayClient(server.address, timeout_s=5.0, wait_for_server_s=60.0) as client:
        waiting = threading.Thread(target=lambda: found.append(client.tables()))
        waiting.start()
        wait_until(lambda: bool(caplog.records), "the client says that it waits")
        server.restart()
        waiting.join()
    assert found == [[]]
    (warning,) = caplog.records
    assert f"no replay server answers at {server.address}" in warning.getMessage()


@pytest.mark.timed
def test_a_client_that_is_told_not_to_wait_does_not(nobody: str) -> None:
    with ReplayClient(nobody, wait_for_server_s=0) as client:
        began = time.monotonic()
        with pytest.raises(ServerUnavailableError):
            client.tables()
        assert time.monotonic() - began < 1.0


def test_after_the_first_contact_calls_wait_for_a_server_that_restarts(start_server: StartServer) -> None:
    server = start_server()
    with ReplayClient(server.address, timeout_s=3.0) as client:
        client.tables()
        server.kill()
        began = time.monotonic()
        with pytest.raises(ServerUnavailableError) as error:
            client.tables()
        assert 2.0 < time.monotonic() - began < DEFAULT_TIMEOUT_S / 2
        assert str(error.value) == f"the replay server at {server.address} cannot be reached"
        assert error.value.metadata["detail"]


def test_a_table_that_arrives_where_no_server_is_says_so(start_server: StartServer) -> None:
    server = start_server()
    with ReplayClient(server.address) as client:
        packed = pickle.dumps(client.create_table("t", columns=COLUMNS, capacity=10))
    server.kill()
    arrived: Table = pickle.loads(packed)
    attempts: list[Callable[[], object]] = [
        arrived.writer,
        lambda: arrived.sampler(1, beta=0.4),
        lambda: arrived.sample(1, beta=0.4),
        lambda: arrived.insert(rows([1])),
    ]
    for attempt in attempts:
        with pytest.raises(ServerUnavailableError, match=f"no replay server answers at {server.address}"):
            attempt()


@pytest.mark.parametrize(
    "address",
    [
        *("", " ", "localhost", "localhost:", ":50051", "localhost:port", "localhost:0", "localhost:65536"),
        *("http://localhost:50051", "https://localhost:50051", "grpc://localhost:50051", "localhost:50051/"),
        *(" localhost:50051", "localhost:50051\n", "local host:50051", "localhost: 50051", "::1:50051", "[::1]", "::1"),
        *(
            "me@localhost:50051",
            "localhost:-1",
            "localhost:\N{ARABIC-INDIC DIGIT FIVE}0",
            "unix:",
            None,
            50051,
            b"localhost:50051",
        ),
    ],
    ids=repr,
)
def test_an_address_that_cannot_be_one_is_refused_with_the_form_that_is_expected(address: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"address: expected host:port, such as localhost:50051") as error:
        ReplayClient(address)
    assert error.value.metadata["got"] == repr(address)


@pytest.mark.parametrize(
    "address",
    [
        *("localhost:50051", "10.0.0.7:1", "replay.example.com:65535", "buffer_1:50051", "[::1]:50051"),
        *("[fe80::1%eth0]:50051", "dns:///replay:50051", "dns://8.8.8.8/replay:50051", "unix:/run/replay.sock"),
    ],
)
def test_addresses_of_the_forms_that_grpc_knows_are_taken(address: str) -> None:
    assert checked_address(address) == address


def test_a_socket_that_is_not_there_is_named(tmp_path: Path) -> None:
    with (
        ReplayClient(f"unix:{tmp_path}/none") as client,
        pytest.raises(ServerUnavailableError, match=f"no replay server answers at unix:{tmp_path}/none"),
    ):
        client.tables()


def test_addresses_are_sorted_by_host_and_then_by_port() -> None:
    names = ["server:9", "server:50051", "server-2:9", "server-10:50051"]
    numbers = ["10.0.0.2:1", "10.0.0.10:1", "unix:/tmp/a"]
    for ordered in (names, numbers):
        assert all(address_order(one) < address_order(other) for one, other in itertools.pairwise(ordered))
