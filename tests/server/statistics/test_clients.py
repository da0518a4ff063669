"""Rates of clients, with a manual clock."""

from __future__ import annotations

import pytest
from replay_server.table.clients import Client, Clients
from replay_server.table.rates import WINDOW_S

from tests.server.statistics.clocks import SetClock


def test_at_first_rates_cover_the_time_since_the_stream_opened() -> None:
    clock = SetClock()
    client = Client("somebody", "learner", clock)
    assert client.rates() == (0.0, 0.0)
    client.rows += 30
    client.updates += 10
    clock.now += 2.0
    assert client.rates() == (15.0, 5.0)


def test_rates_cover_the_last_minute() -> None:
    clock = SetClock()
    client = Client("somebody", "writer", clock)
    client.rows += 1_000_000
    for _ in range(2 * WINDOW_S):
        clock.now += 1.0
        client.mark()
        client.rows += 7
    assert client.rates().rows_per_s == pytest.approx(7.0, rel=0.05)


def test_a_client_lasts_as_long_as_its_streams() -> None:
    clients = Clients()
    first, second, other = clients.join("a", "writer"), clients.join("a", "writer"), clients.join("a", "learner")
    assert first is second
    assert [(client.role, client.streams) for client in clients] == [("writer", 2), ("learner", 1)]
    clients.leave(first)
    clients.leave(other)
    assert [(client.role, client.streams) for client in clients] == [("writer", 1)]
    clients.leave(second)
    assert list(clients) == []
