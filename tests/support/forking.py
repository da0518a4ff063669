"""A process that has loaded a program, and forks it on request: the other end of `warm_program`.

Each connection is served by a fork of it, which forks the programs, so that these are its children.

Loading the server or the command `replay` takes a second of CPU time, and a trainer or an actor three, mostly for
modules and kernels. A forked program runs the same code as the command, from parsing its command line to the
interpreter's shutdown. Before the fork, gRPC is not started, and there are no Python threads.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from tests.support.forked_pages import load_pages
from tests.support.warm_program import ACTOR, AGENT, LONGEST_REQUEST, PAGES, REPLAY, SERVER, TO_END, TRAIN, WORKER
from tests.support.worker import load_tests

STREAMS = 3
"""Standard input, output and error are sent with each request for a program."""
_MOST_DESCRIPTORS = 8


def load_server() -> Callable[[], None]:
    """Load ``replay-server``, and return its main function."""
    from replay_server import __main__ as program
    from replay_server.process.garbage import loading
    from replay_server.process.warming import warm_up

    with loading():
        program.load_server()
        warm_up()
    return program.main


def load_replay() -> Callable[[], None]:
    """Load the command ``replay``, and return its main function."""
    import replay_client.cli
    import replay_client.cli.app

    return replay_client.cli.main


def load_agent() -> Callable[[], None]:
    """Load ``replay-train`` and ``replay-actor``; return a function that runs the one named by the first argument."""
    from replay_agent.commands import replay_actor, replay_train

    for module in ("distributed.acting_run", "training.run"):  # the commands import them lazily
        importlib.import_module(f"replay_agent.{module}")
    commands = {TRAIN: replay_train.main, ACTOR: replay_actor.main}
    return lambda: sys.exit(commands[sys.argv.pop(1)]())


def load_commands_and_pages() -> Callable[[], None]:
    """Load what documentation pages run, and return a function that runs a block."""
    return load_pages({SERVER: load_server(), REPLAY: load_replay()})


LOAD = {
    SERVER: load_server,
    REPLAY: load_replay,
    AGENT: load_agent,
    PAGES: load_commands_and_pages,
    WORKER: load_tests,
}


def serve(listening: socket.socket, owner: int) -> socket.socket | None:
    """Fork a process for each connection, until told to end or the process that began the run has ended.

    Returns:
        The connection, in each forked process; None in this one.
    """
    run = os.pidfd_open(owner)
    awaited: list[socket.socket | int] = [listening, run]
    while listening in select.select(awaited, [], [])[0]:
        connection, _ = listening.accept()
        if connection.recv(LONGEST_REQUEST) == TO_END:
            connection.detach()  # It stays open until this process has exited, because the other end waits for that.
            return None
        if os.fork() == 0:
            os.close(run)
            return connection
        connection.close()
    return None


def fork_when_asked(control: socket.socket) -> bool:
    """Fork a program per request, and report how each ended.

    Returns:
        True in each forked process; False in this one, once there are no more requests.
    """
    while True:
        message, streams, _, _ = socket.recv_fds(control, LONGEST_REQUEST, _MOST_DESCRIPTORS)
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
    """Set up the inherited state of a process."""
    if request["new_session"]:
        os.setsid()
    for number, stream in enumerate(streams[:STREAMS]):  # further ones are kept open
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["folder"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    _customize()
    sys.argv = [sys.argv[1], *request["arguments"]]
    # However the tests were begun, for example by nohup.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _customize() -> None:
    """Run the ``sitecustomize`` of a folder added to ``PYTHONPATH``, like an interpreter at startup."""
    for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        module = os.path.join(folder, "sitecustomize.py")
        if folder not in sys.path and os.path.exists(module):
            runpy.run_path(module)


if __name__ == "__main__":
    # Ctrl-C is meant for the tests; this program exits with them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[2])) as listening:
        run = LOAD[sys.argv[1]]()
        gc.freeze()  # Loaded modules are never garbage, and scanning them would copy their memory in every fork.
        asked = serve(listening, int(sys.argv[3]))
    # In the process between, `asked` stays open until it has exited, because the other end waits for that.
    if asked is not None and fork_when_asked(asked):
        asked.close()
        run()
