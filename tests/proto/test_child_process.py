"""A child process notices that its parent or its standard input is gone."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys

PROGRAM = """
import threading
from replay_proto.child_process import when_parent_dies
ended = threading.Event()
when_parent_dies(ended.set)
print("watching", flush=True)
print(ended.wait(20))
"""


def test_standard_input_that_breaks_counts_as_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours, (its, _) = socket.create_connection(listener.getsockname()), listener.accept()
    with (
        ours,
        its,
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=its.fileno(), stdout=subprocess.PIPE, text=True
        ) as child,
    ):
        assert child.stdout is not None
        assert child.stdout.readline() == "watching\n"
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        ours.close()  # resets the connection
        assert child.stdout.readline() == "True\n"
