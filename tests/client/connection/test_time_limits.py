"""Time limits have the same meaning in every call; options are keyword arguments."""

from __future__ import annotations

import inspect
import math
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from replay_client import (
    Batch,
    DeadlineExceededError,
    InvalidArgumentError,
    LimitedError,
    ReplayClient,
    Sampler,
    Table,
    TableEmptyError,
    Writer,
)
from replay_client.torch import TensorSampler

from tests.client.conftest import COLUMNS
from tests.client.numbered import row, rows
from tests.support.caller import wire_only
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

ALL_DATA_PATHS = True

NewTable = Callable[..., Table]
Connect = Callable[..., ReplayClient]
OWN_S = 0.3
"""A short default time limit."""
IN_ANY_TIME = {"timeout_s": math.inf}
"""For calls that end the wait of others: on a busy machine, an answer may take longer than `OWN_S` and its margin."""

NO_LIMITS: list[Any] = [math.nan, -1, -math.inf, True, False, "3", [1.0]]
LIMITED: dict[str, Callable[[Table, Any], object]] = {
    "insert": lambda table, limit: table.insert(rows([1]), timeout_s=limit),
    "sample": lambda table, limit: table.sample(1, beta=0.4, timeout_s=limit),
    "sampler": lambda table, limit: table.sampler(1, beta=0.4, timeout_s=limit),
    "a writer's flush": lambda table, limit: table.writer().flush(timeout_s=limit),
    "a writer's close": lambda table, limit: table.writer().close(timeout_s=limit),
    "a sampler's flush": lambda table, limit: table.sampler(1, beta=0.4).flush(timeout_s=limit),
    "a sampler's close": lambda table, limit: table.sampler(1, beta=0.4).close(timeout_s=limit),
    "a tensor sampler's flush": lambda table, limit: table.sampler(1, beta=0.4, device="cpu").flush(timeout_s=limit),
}
RECONNECTING: dict[str, Callable[[Table, Any], object]] = {
    "writer": lambda table, limit: table.writer(reconnect_timeout_s=limit),
    "sampler": lambda table, limit: table.sampler(1, beta=0.4, reconnect_timeout_s=limit),
}


@pytest.fixture
def hasty(connect: Connect, server: ServerProcess, new_table: NewTable) -> Callable[..., Table]:
    """Creates tables of a client with a short default time limit."""

    def make(**config: Any) -> Table:
        return connect(server, timeout_s=OWN_S).table(new_table(**config).name)

    return make


@wire_only
@pytest.mark.parametrize("limit", [-1, True], ids=repr)
@pytest.mark.parametrize("call", LIMITED)
def test_what_is_no_time_limit_is_refused_by_name(table: Table, call: str, limit: object) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        LIMITED[call](table, limit)
    assert error.value.metadata["field"] == "timeout_s"
    assert error.value.metadata["got"] == repr(limit)


@wire_only
@pytest.mark.parametrize("limit", [-1, True], ids=repr)
@pytest.mark.parametrize("call", RECONNECTING)
def test_what_is_no_time_limit_for_a_server_that_is_away_is_refused(table: Table, call: str, limit: object) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        RECONNECTING[call](table, limit)
    assert error.value.metadata["field"] == "reconnect_timeout_s"


@pytest.mark.parametrize("limit", [*NO_LIMITS, None, 0], ids=repr)
def test_a_clients_own_limit_has_to_leave_some_time(server: ServerProcess, limit: Any) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        ReplayClient(server.address, timeout_s=limit)
    assert error.value.metadata["field"] == "timeout_s"


def test_a_draw_that_does_not_wait_is_refused_at_once(table: Table, new_table: NewTable) -> None:
    with pytest.raises(TableEmptyError):
        table.sample(1, beta=0.4)
    with pytest.raises(TableEmptyError):
        table.sample(1, beta=0.4, timeout_s=0)
    with table.sampler(1, beta=0.4, timeout_s=0) as sampler, pytest.raises(TableEmptyError):
        next(sampler)
    limited = new_table(min_size=5)
    limited.insert(rows([0]))
    with pytest.raises(LimitedError):
        limited.sample(1, beta=0.4)


def test_a_draw_waits_for_the_clients_own_limit(hasty: NewTable) -> None:
    table = hasty()
    with pytest.raises(DeadlineExceededError, match=f"waited {OWN_S} s for rows: 0 of 1 rows"):
        table.sample(1, beta=0.4, timeout_s=None)
    with table.sampler(1, beta=0.4, timeout_s=None) as sampler, pytest.raises(DeadlineExceededError, match=f"{OWN_S}"):
        next(sampler)


def test_a_draw_waits_for_ever(hasty: NewTable) -> None:
    table = hasty()
    with table.sampler(1, beta=0.4, prefetch=1, timeout_s=math.inf) as sampler:
        draws: list[Callable[[], Batch]] = [
            lambda: table.sample(1, beta=0.4, timeout_s=math.inf),
            lambda: next(sampler),
        ]
        for number, draw in enumerate(draws):
            filling = threading.Timer(3 * OWN_S, table.insert, [rows([number])], IN_ANY_TIME)
            filling.start()
            assert len(draw().row_keys) == 1
            filling.join()
            table.reset()


def test_an_insert_does_not_wait_waits_for_the_clients_own_limit_or_for_ever(hasty: NewTable) -> None:
    queue = hasty(backend="fifo", capacity=2)
    queue.insert(rows([0, 1]))
    with pytest.raises(LimitedError):
        queue.insert(rows([2]), timeout_s=0)
    with pytest.raises(DeadlineExceededError, match=f"waited {OWN_S} s for room: room for 0 of 1 rows"):
        queue.insert(rows([2]))
    making_room = threading.Timer(3 * OWN_S, queue.sample, [1], IN_ANY_TIME)
    making_room.start()
    assert queue.insert(rows([2]), timeout_s=math.inf).tolist() == [2]
    making_room.join()


FIRST_CALLS: dict[str, Callable[[ReplayClient, Table], object]] = {
    "publish": lambda client, _: client.publish("known", {"w": 1.0}, timeout_s=OWN_S),
    "the first publish of a name": lambda client, _: client.publish("new", {"w": 1.0}, timeout_s=OWN_S),
    "latest": lambda client, _: client.latest("known", timeout_s=OWN_S),
    "sample": lambda _, table: table.sample(1, timeout_s=OWN_S),
}
FIRST_CALLS_WITH_THE_CLIENTS_LIMIT: dict[str, Callable[[ReplayClient, Table], object]] = {
    "sample": lambda _, table: table.sample(1),
    "read": lambda _, table: table.read([0]),
    "update_priorities": lambda _, table: table.update_priorities([0], [1.0]),
}


def test_the_first_calls_of_clients_end_in_time_if_the_server_hangs(
    start_server: Callable[..., ServerProcess], connect: Connect
) -> None:
    """All at once, because each of them waits. The server has two seconds more to say what a call has waited for."""
    server = start_server()
    first = connect(server)
    first.create_table("t", columns=COLUMNS, capacity=10).insert(rows([0]))
    first.publish("known", {"w": 1.0})
    waits: list[tuple[Callable[[ReplayClient, Table], object], float, float]] = [
        *((call, 30.0, OWN_S + 2.0) for call in FIRST_CALLS.values()),
        *((call, OWN_S, OWN_S) for call in FIRST_CALLS_WITH_THE_CLIENTS_LIMIT.values()),
    ]
    clients = [connect(server, timeout_s=own_s) for _, own_s, _ in waits]
    tables = [client.table("t") for client in clients]

    def seconds_until_too_late(number: int) -> float:
        began = time.monotonic()
        with pytest.raises(DeadlineExceededError):
            waits[number][0](clients[number], tables[number])
        return time.monotonic() - began

    server.process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(len(waits)) as pool:
        seconds = list(pool.map(seconds_until_too_late, range(len(waits))))
    server.process.send_signal(signal.SIGCONT)
    for (_, _, limit_s), took_s in zip(waits, seconds, strict=True):
        assert OWN_S <= took_s < limit_s + 1.2, seconds


def test_a_writer_gives_up_after_the_clients_own_limit_and_says_how_many_rows_are_left(hasty: NewTable) -> None:
    queue = hasty(backend="fifo", capacity=2)
    writer = queue.writer(block_rows=1)
    for number in range(5):
        writer.append(**row(number))
    wait_until(lambda: writer.acknowledged >= 2, "the queue is full")
    endings: list[Callable[[], None]] = [writer.flush, lambda: writer.flush(timeout_s=0), writer.close]
    for give_up in endings:
        with pytest.raises(DeadlineExceededError, match=r"3 rows of table .* were not acknowledged"):
            give_up()


def test_a_writer_flushes_for_ever(hasty: NewTable) -> None:
    queue = hasty(backend="fifo", capacity=2)
    with queue.writer(block_rows=1) as writer:
        for number in range(3):
            writer.append(**row(number))
        making_room = threading.Timer(3 * OWN_S, queue.sample, [2], IN_ANY_TIME)
        making_room.start()
        writer.flush(timeout_s=math.inf)
        assert writer.acknowledged == 3
        making_room.join()


@wire_only
@pytest.mark.parametrize("backend", ["sum_tree", "rank", "uniform", "fifo"])
def test_beta_is_that_of_the_paper_unless_given(new_table: NewTable, backend: str) -> None:
    table = new_table(backend=backend)
    table.insert(rows(range(20)), priorities=range(1, 21))
    batch = table.sample(4)
    assert batch.beta == 0.4
    if backend in ("uniform", "fifo"):
        assert batch.weights.tolist() == [1.0] * 4
    with table.sampler(4, prefetch=1) as sampler:
        assert next(sampler).beta == sampler.beta == 0.4


@wire_only
def test_a_sampler_waits_for_rows_unless_told_otherwise(table: Table) -> None:
    with table.sampler(4) as sampler:
        inserting = threading.Timer(0.2, lambda: table.insert(rows(range(4))))
        inserting.start()
        assert next(sampler).batch_size == 4
        inserting.join()


@pytest.mark.parametrize("kind", [ReplayClient, Table, Writer, Sampler, TensorSampler])
def test_everything_after_the_first_argument_is_a_keyword(kind: type) -> None:
    # Keys and values; names and values.
    allowed = {"update_priorities": 2, "update": 2, "end_episodes": 2, "publish": 2}
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if name.startswith("_") and name != "__init__":
            continue
        if name == "__init__" and kind is not ReplayClient:
            continue  # created by a table
        positional = [
            parameter
            for parameter in inspect.signature(method).parameters.values()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        assert len(positional) - 1 <= allowed.get(name, 1), f"{kind.__name__}.{name}{inspect.signature(method)}"
        options = [parameter for parameter in positional[1:] if parameter.default is not parameter.empty]
        assert all(option.annotation.startswith(("Iterable", "Mapping")) for option in options), f"{name}: {options}"


@wire_only
def test_a_table_is_made_by_keywords(client: ReplayClient) -> None:
    with pytest.raises(TypeError, match="positional"):
        client.create_table("by-place", COLUMNS, 10)  # type: ignore[call-arg]
