"""A proxy that cuts connections while calls wait: the wait goes on, because the server is there."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator

import pytest
from replay_client import DeadlineExceededError, ReplayClient, Table
from replay_client._transport import attempts

from tests.client.numbered import rows
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess
from tools.faults.proxy import Proxy

_CUT_AFTER_S = 0.2


class Cut:
    """A table on both ways, and how often a waiting draw was cut."""

    def __init__(self, direct: Table, through: Table) -> None:
        self.direct = direct
        self.through = through
        self.times = 0


@pytest.fixture
def cut(server: ServerProcess, new_table: Callable[..., Table], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cut]:
    """An empty table; each draw that waits for a while through the proxy is cut."""
    monkeypatch.setattr(attempts, "CUT_AFTER_S", 0.1)
    ended = threading.Event()
    direct = new_table()
    with Proxy(server.port) as proxy, ReplayClient(proxy.address, same_host=False) as client:
        made = Cut(direct, client.table(direct.name))

        def has_waited() -> bool:
            return any(wait.waited_s >= _CUT_AFTER_S for wait in direct.stats().waits)

        def cut_waiting() -> None:
            while not ended.wait(0.01):
                if has_waited():
                    proxy.reset()
                    made.times += 1
                    # The next draw waits for as long, and is not taken for this one.
                    wait_until(lambda: not has_waited(), "the server has noticed")

        cutting = threading.Thread(target=cut_waiting)
        cutting.start()
        try:
            yield made
        finally:
            ended.set()
            cutting.join()


def test_a_sampler_waits_on(cut: Cut) -> None:
    drawn: list[int] = []
    sampler = cut.through.sampler(4, beta=0.4, timeout_s=math.inf, reconnect_timeout_s=0.3)
    drawing = threading.Thread(target=lambda: drawn.append(next(sampler).batch_size))
    drawing.start()
    wait_until(lambda: cut.times >= 4, "it was cut for longer than it may be away")
    cut.direct.insert(rows(range(4)))
    drawing.join()
    assert drawn == [4]
    sampler.cancel()


def test_a_draw_ends_at_its_time_limit(cut: Cut) -> None:
    with pytest.raises(DeadlineExceededError):
        cut.through.sample(4, beta=0.4, timeout_s=5 * _CUT_AFTER_S)
    assert cut.times
