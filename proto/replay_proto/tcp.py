"""Options of the TCP connections on which both ends send frames."""

from __future__ import annotations

import socket
from typing import Final

_OPTIONS: Final = {
    "TCP_NODELAY": 1,
    # A peer that vanished without a word (a pulled cable, a lost machine) is noticed within 45 s, if nothing was sent.
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
}
_GIVES_UP_MS: Final = 45_000


def prepare(link: socket.socket, *, gives_up: bool) -> None:
    """Have a connection send at once, and notice a peer that is gone.

    Args:
        link: the connection.
        gives_up: end it, too, if the peer does not take in what it is sent for 45 s. Not for who sends to learners:
            they may do something else for long, and the kernel does not tell that from being gone.
    """
    if gives_up and hasattr(socket, "TCP_USER_TIMEOUT"):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _GIVES_UP_MS)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS.items():
        if hasattr(socket, name):  # not every system has them all
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
