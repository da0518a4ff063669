"""A program that has loaded the server, and forks a server each time it is asked: the other end of `warm_server`.

To load the server takes a second of processor time and more, most of it for modules and kernels that every server has.
A forked server runs what the command runs, from the reading of its command line to the end of the interpreter. Nothing
of gRPC, and no thread of Python's, is begun before the fork.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import Any

from replay_server.__main__ import load_server, main
from replay_server.loading import loading
from replay_server.warming import warm_up

from tests.support.warm_server import LONGEST_REQUEST

STREAMS = 3
"""Standard input, output and error come with a request for a server."""


def fork_when_asked(control: socket.socket) -> bool:
    """Fork a server per request, and tell how each ended.

    Returns:
        True in each process that is to be a server; False here, once nobody is left to ask.
    """
    while True:
        message, streams, _, _ = socket.recv_fds(control, LONGEST_REQUEST, STREAMS)
        if not message:
            return False
        request = json.loads(message)
        if "ended" in request:
            _, status = os.waitpid(request["ended"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if answer == 0:
                _become(request, streams)
                return True
            for stream in streams:
                os.close(stream)
        control.send(json.dumps(answer).encode())


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Take over what a process has from the one that starts it."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["folder"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]
    signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    # Ctrl-C is for the tests. This program ends with them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with loading():
        load_server()
        warm_up()
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        is_server = fork_when_asked(asked)
    if is_server:
        main()
