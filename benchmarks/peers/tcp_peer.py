"""A bare TCP round trip on loopback with as many bytes as a learner step: a lower bound for services over TCP."""

from __future__ import annotations

import os
import socket
import sys

from windows import WORKLOADS, serve_windows

_KEY_AND_NUMBER_BYTES = 8 + 4
"""Bytes per row in each direction: a key, and a priority in requests or a weight in replies."""


def answer(listener: socket.socket, request: int, reply: bytes) -> None:
    """Reply to each request until the peer disconnects."""
    link, _ = listener.accept()
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while link.recv(request, socket.MSG_WAITALL):
        link.sendall(reply)


def main() -> None:
    """Serve in a child process, and send requests from this one."""
    workload = WORKLOADS[sys.argv[1]]
    request = bytes(workload.batch_size * _KEY_AND_NUMBER_BYTES)
    reply_bytes = workload.batch_size * (workload.row_bytes + _KEY_AND_NUMBER_BYTES)
    listener = socket.create_server(("127.0.0.1", 0))
    if os.fork() == 0:
        answer(listener, len(request), bytes(reply_bytes))
        os._exit(0)
    link = socket.create_connection(listener.getsockname())
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    incoming = memoryview(bytearray(reply_bytes))

    def step() -> None:
        link.sendall(request)
        got = 0
        while got < reply_bytes:
            got += link.recv_into(incoming[got:])

    serve_windows(step)


if __name__ == "__main__":
    main()
