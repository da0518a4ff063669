"""A proxy that cuts connections while calls wait: the wait goes on, because the server is there."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator

import pytest
from replay_client import DeadlineExceededError, ReplayClient, Table
from replay_client._transport import attempts

from tests.client.numbered import rows
from tests.faults.proxy import Proxy
from tests.support.server_process import ServerProcess

_CUT_EVERY_S = 0.3


@pytest.fixture
def through(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReplayClient]:
    """A client whose connections are reset every now and then."""
    monkeypatch.setattr(attempts, "CUT_AFTER_S", 0.1)
    ended = threading.Event()
    with Proxy(server.port) as proxy:

        def cut() -> None:
            while not ended.wait(_CUT_EVERY_S):
                proxy.reset()

        cutting = threading.Thread(target=cut)
        cutting.start()
        try:
            with ReplayClient(proxy.address, same_host=False) as client:
                yield client
        finally:
            ended.set()
            cutting.join()


def test_a_sampler_waits_on(through: ReplayClient, new_table: Callable[..., Table]) -> None:
    table = new_table()
    sampler = through.table(table.name).sampler(4, beta=0.4, timeout_s=math.inf, reconnect_timeout_s=0.4)
    insert = threading.Timer(5 * _CUT_EVERY_S, table.insert, (rows(range(4)),))
    insert.start()
    assert next(sampler).batch_size == 4
    insert.join()
    sampler.cancel()


def test_a_draw_ends_at_its_time_limit(through: ReplayClient, new_table: Callable[..., Table]) -> None:
    with pytest.raises(DeadlineExceededError):
        through.table(new_table().name).sample(4, beta=0.4, timeout_s=4 * _CUT_EVERY_S)
