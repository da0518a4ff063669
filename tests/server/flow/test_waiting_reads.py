"""Reads that wait for rows yet to be inserted."""

from __future__ import annotations

import time
from collections.abc import Callable

import grpc
import numpy as np
import pytest
from numpy.typing import ArrayLike
from replay_proto.v1 import replay_pb2

from tests.support.caller import CALL_TIMEOUT_S, CalledTable, int64
from tests.support.flow import wait_for_waiting
from tests.support.refusals import refused

NewTable = Callable[..., CalledTable]


def read(table: CalledTable, keys: ArrayLike, wait_s: float) -> replay_pb2.ReadResponse:
    return begin(table, keys, wait_s).result()


def begin(table: CalledTable, keys: ArrayLike, wait_s: float) -> grpc.Future[replay_pb2.ReadResponse]:
    """Start to read rows; ``result()`` waits for the reply."""
    request = replay_pb2.ReadRequest(table=table.name, table_uid=table.uid, keys=int64(keys), wait_s=wait_s)
    return table.stub.Read.future(request, timeout=CALL_TIMEOUT_S)


def keys_of(answer: replay_pb2.ReadResponse) -> list[int]:
    keys: list[int] = np.frombuffer(answer.keys, "<i8").tolist()
    return keys


def test_a_read_waits_until_its_largest_key_is_used(table: CalledTable) -> None:
    table.insert(np.arange(3))
    reading = begin(table, [1, 7, 2], wait_s=60.0)
    wait_for_waiting(table, 1)
    table.insert(np.arange(4))
    assert table.stats().waiting == 1
    table.insert(np.arange(2))
    assert keys_of(reading.result()) == [1, 7, 2]
    assert table.stats().waiting == 0


@pytest.mark.parametrize("keys", [[], [0], [-5, 2], [2]])
def test_a_read_of_used_keys_does_not_wait(table: CalledTable, keys: list[int]) -> None:
    table.insert(np.arange(3))
    began = time.monotonic()
    assert keys_of(read(table, keys, wait_s=60.0)) == [key for key in keys if key >= 0]
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize("key", [3, 2**63 - 1])
def test_after_its_time_a_read_returns_what_there_is(table: CalledTable, key: int) -> None:
    table.insert(np.arange(3))
    began = time.monotonic()
    assert keys_of(read(table, [0, key], wait_s=0.3)) == [0]
    assert time.monotonic() - began >= 0.3
    assert table.stats().waiting == 0


def test_a_waiting_read_delays_nobody_and_is_not_delayed(table: CalledTable) -> None:
    late, early = begin(table, [50], wait_s=60.0), begin(table, [5], wait_s=60.0)
    drawing = table.begin_sample(4)
    wait_for_waiting(table, 3)
    table.insert(np.arange(6))
    assert keys_of(early.result()) == [5]
    assert len(drawing.result().batch.keys) == 4 * 8
    assert not late.done()
    table.insert(np.arange(45))
    assert keys_of(late.result()) == [50]


def test_a_reset_does_not_end_the_wait_because_keys_go_on(table: CalledTable) -> None:
    table.insert(np.arange(3))
    reading = begin(table, [3], wait_s=60.0)
    wait_for_waiting(table, 1)
    table.reset()
    assert table.stats().waiting == 1
    table.insert(np.arange(1))
    assert keys_of(reading.result()) == [3]


def test_a_dropped_table_ends_the_wait(table: CalledTable) -> None:
    reading = begin(table, [0], wait_s=60.0)
    wait_for_waiting(table, 1)
    table.drop()
    with refused("TABLE_NOT_FOUND"):
        reading.result()


def test_a_canceled_read_no_longer_waits(table: CalledTable) -> None:
    reading = begin(table, [0], wait_s=60.0)
    wait_for_waiting(table, 1)
    reading.cancel()
    wait_for_waiting(table, 0)


def test_a_read_waits_for_large_inserts_too(new_table: NewTable) -> None:
    """These run in a worker thread."""
    table = new_table(capacity=40_000)
    reading = begin(table, [7_999], wait_s=60.0)
    wait_for_waiting(table, 1)
    for _ in range(16):
        table.insert(np.arange(500))
    assert keys_of(reading.result()) == [7_999]


@pytest.mark.parametrize("wait_s", [-1.0, float("nan")])
def test_a_wrong_time_is_refused(table: CalledTable, wait_s: float) -> None:
    with refused("INVALID_FIELD", field="wait_s"):
        read(table, [0], wait_s)
