from __future__ import annotations

import socket

import pytest
from replay_proto.tcp import prepare


@pytest.mark.parametrize(("gives_up", "timeout_ms"), [(True, 45_000), (False, 0)])
def test_only_who_asks_for_it_gives_up_on_a_peer_that_does_not_read(gives_up: bool, timeout_ms: int) -> None:
    with socket.socket() as link:
        prepare(link, gives_up=gives_up)
        assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == timeout_ms
        assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
