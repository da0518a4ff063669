"""Killed clients: the server keeps only their complete inserts, and frees their resources."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.context import ForkServerProcess

import psutil
import pytest

from tests.support.actors import insert_for, learn_for
from tests.support.caller import WIRE, Caller
from tests.support.deadlines import wait_until
from tests.support.processes import loaded_processes
from tests.support.rows import WHOLE
from tests.support.server_process import ServerProcess

CLIENTS = 6
ROUNDS = 2
LONG_S = 60.0


@pytest.fixture
def caller(start_server: Callable[..., ServerProcess], call: Callable[[ServerProcess], Caller]) -> Caller:
    """A caller of a separate server."""
    return call(start_server())


def started(caller: Caller, table: str, kind: str, number: int) -> ForkServerProcess:
    """A client in a separate process."""
    if kind == "insert":
        client = loaded_processes().Process(target=insert_for, args=(caller.address, table, number, LONG_S))
    else:
        client = loaded_processes().Process(target=learn_for, args=(caller.address, WIRE, table, number, LONG_S))
    client.start()
    return client


def test_killed_clients_leave_whole_rows_and_no_streams(caller: Caller) -> None:
    table = caller.create(capacity=5000)
    table.insert(range(100))
    for number in range(ROUNDS):
        kinds = ["insert", "learn"] * (CLIENTS // 2)
        clients = [started(caller, table.name, kind, 1 + number * CLIENTS + each) for each, kind in enumerate(kinds)]
        before = table.describe().inserted
        wait_until(lambda before=before: table.describe().inserted > before + 500, "they insert")  # type: ignore[misc]
        wait_until(lambda: caller.method("Learn").active > 0, "they learn")
        for client in clients:
            client.kill()
        for client in clients:
            client.join()
        wait_until(lambda: caller.method("Write").active + caller.method("Learn").active == 0, "their streams end")
        rows = table.read(table.live_keys())
        assert len(rows.values) == table.describe().size
        assert len(rows.rows) == len(rows.keys) * WHOLE.row_bytes
        assert len(set(rows.values.tolist())) == len(rows.values)
        assert table.update(rows.keys, [1.0] * len(rows.keys)).updated == len(rows.keys)


def test_the_handles_of_killed_clients_are_closed(
    start_server: Callable[..., ServerProcess], call: Callable[[ServerProcess], Caller]
) -> None:
    server = start_server()
    caller = call(server)
    table = caller.create(capacity=5000)
    table.insert(range(100))
    handles = psutil.Process(server.pid).num_fds()
    for number in range(ROUNDS):
        client = started(caller, table.name, "insert", number + 1)
        wait_until(lambda: caller.method("Write").active == 1, "it writes")
        client.kill()
        client.join()
        wait_until(lambda: caller.method("Write").active == 0, "its stream ends")
    wait_until(lambda: psutil.Process(server.pid).num_fds() <= handles + 1, "its connection is closed")
