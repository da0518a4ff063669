"""Options of the TCP connections on which both ends send frames."""

from __future__ import annotations

import socket
from typing import Final

_OPTIONS: Final = {
    "TCP_NODELAY": 1,
    # A peer that vanished without a word (a pulled cable, a lost machine) is noticed within 45 s.
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 45_000,
}


def prepare(link: socket.socket) -> None:
    """Have a connection send at once, and notice a peer that is gone."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS.items():
        if hasattr(socket, name):  # not every system has them all
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
