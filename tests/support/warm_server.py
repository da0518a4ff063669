"""Servers that are forked from one that is loaded already, see `forking`: a process of their own within 0.1 s."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import IO

LONGEST_REQUEST = 1 << 17
"""Bytes of a request to the program that forks."""
_READ_LATE = ("REPLAY_", "PYTEST_CURRENT_TEST")
"""Variables that a server reads once it is forked, if at all. Others may have been read before."""
_PATIENCE_S = 60


class ForkedProcess:
    """A forked server, with what `subprocess.Popen` offers of one that is started."""

    def __init__(self, parent: WarmServer, pid: int, stdin: IO[str] | None, stdout: IO[str]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin = stdin
        self.stdout = stdout
        self._parent = parent
        self._handle = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Its exit status, None while it runs."""
        return self._status_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return its exit status."""
        status = self._status_within(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"server {self.pid}", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _status_within(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._handle], [], [], timeout)[0]:
            self.returncode = self._parent.status_of(self.pid)
            os.close(self._handle)
        return self.returncode


class WarmServer:
    """The program that forks servers, as a child of this process."""

    def __init__(self) -> None:
        self._environment = _other_variables(os.environ)
        self._asking = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forking", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # The command sets it before it loads gRPC, which is loaded here before anything is forked.
                env={"GRPC_VERBOSITY": "NONE", **os.environ},
            )

    def can_fork(self, environment: Mapping[str, str]) -> bool:
        """Whether a server with these variables would be as one that is started with them."""
        return _other_variables(environment) == self._environment

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], stdin: int, stderr: int) -> ForkedProcess:
        """Fork a server.

        Args:
            arguments: its command line.
            environment: all of its variables.
            stdin: ``subprocess.PIPE`` or ``subprocess.DEVNULL``.
            stderr: file descriptor that it logs to.
        """
        output, its_output = os.pipe()
        its_input, given = os.pipe() if stdin == subprocess.PIPE else (os.open(os.devnull, os.O_RDONLY), None)
        umask = os.umask(0)
        os.umask(umask)
        request = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": os.getcwd(),
            "umask": umask,
        }
        pid = self._ask(request, [its_input, its_output, stderr])
        os.close(its_input)
        os.close(its_output)
        return ForkedProcess(self, pid, None if given is None else os.fdopen(given, "w"), os.fdopen(output))

    def status_of(self, pid: int) -> int:
        """The exit status of a server that has ended, as `subprocess` has it."""
        return self._ask({"ended": pid})

    def close(self) -> None:
        """End the program, and wait until it has written what it covered."""
        self._control.close()
        self._process.wait(_PATIENCE_S)

    def _ask(self, request: dict[str, object], descriptors: Sequence[int] = ()) -> int:
        message = json.dumps(request).encode()
        assert len(message) <= LONGEST_REQUEST
        with self._asking:
            socket.send_fds(self._control, [message], descriptors)
            return int(json.loads(self._control.recv(LONGEST_REQUEST)))


@cache
def warm_server() -> WarmServer:
    """The one of this process."""
    return WarmServer()


def close_warm_server() -> None:
    """End it, if it was ever asked for."""
    if warm_server.cache_info().currsize:
        warm_server().close()
        warm_server.cache_clear()


def _other_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(_READ_LATE)}
