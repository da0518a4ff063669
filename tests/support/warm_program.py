"""Programs forked from a process that has loaded them, within 0.1 s; see `forking`."""

from __future__ import annotations

import hashlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

SERVER, REPLAY, AGENT, PAGES, WORKER = "replay-server", "replay", "agent", "pages", "worker"
"""The programs that can be forked. `AGENT` is `TRAIN` or `ACTOR`, depending on its first argument. `PAGES` runs a block
of a documentation page. `WORKER` is a worker of pytest-xdist that has imported all tests; see `worker`."""
TRAIN, ACTOR = "replay-train", "replay-actor"
LONGEST_REQUEST = 1 << 17
"""Bytes of a request to the program that forks."""
_READ_LATE = (
    *("REPLAY_", "COLUMNS", "TERM", "PYTEST_"),
    "TORCHINDUCTOR_",  # a library that a test imports sets it
    *("PYTHONPATH", "DISK_"),  # tests of failing disks set them; see `forking`
    "PYTHONSAFEPATH",  # `LocalServer` sets it; it concerns imports, and a forked program has imported everything
)
"""Prefixes of variables that a program reads only after the fork, if at all. Others may have been read before."""
_SET_BY_PROGRAMS = ("GRPC_VERBOSITY", "NONE")
"""Programs set this variable themselves, and so does this process when a test runs a command in it."""
TO_FORK, TO_END = b"fork", b"end"
"""First messages to a process that has loaded a program: fork it for the sender, or end when the sender closes."""
_RUN = "TESTS_RUN"
"""Variable with the process that began a run of tests, and the folder of the run's sockets."""
_ROOT = Path(__file__).parents[2]
_PATIENCE_S = 60
_LOADED_WITHIN_S = 200
"""Loading all tests takes 8 s of CPU time, on machines that may be slow and busy."""


class ForkedProcess:
    """A forked program, with the interface of `subprocess.Popen`."""

    def __init__(self, parent: WarmProgram, pid: int, stdin: IO[str] | None, stdout: IO[str] | None) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin = stdin
        self.stdout = stdout
        self._parent = parent
        self._handle = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Exit status; None while the program runs."""
        return self._status_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return its exit status."""
        status = self._status_within(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"program {self.pid}", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._handle, number)

    def terminate(self) -> None:
        """Terminate the program."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the program."""
        self.send_signal(signal.SIGKILL)

    def _status_within(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._handle], [], [], timeout)[0]:
            self.returncode = self._parent.status_of(self.pid)
            os.close(self._handle)
        return self.returncode


class WarmProgram:
    """A process that forks a program for this one. All processes of a test run share what has loaded the program."""

    def __init__(self, name: str) -> None:
        """Start to load one of the programs above, unless another process of this run has."""
        self._environment = _other_variables(os.environ)
        self._asking = threading.Lock()
        self._control = _connected(_loading(name, self._environment), TO_FORK)
        self._control.settimeout(_LOADED_WITHIN_S)

    def can_fork(self, environment: Mapping[str, str]) -> bool:
        """Whether forking with these variables is equivalent to starting with them."""
        return _other_variables(environment) == self._environment

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        stdin: int,
        stderr: int,
        stdout: int = subprocess.PIPE,
        *,
        new_session: bool = False,
        keep_open: Sequence[int] = (),
    ) -> ForkedProcess:
        """Fork the program.

        Args:
            arguments: its command line.
            environment: all of its variables.
            stdin: file descriptor that it reads, ``subprocess.PIPE`` or ``subprocess.DEVNULL``.
            stderr: file descriptor that it logs to.
            stdout: file descriptor that it writes to, or ``subprocess.PIPE``.
            new_session: whether Ctrl-C in the terminal does not reach it.
            keep_open: further file descriptors that it inherits, with other numbers.
        """
        output, its_output = os.pipe() if stdout == subprocess.PIPE else (None, os.dup(stdout))
        its_input, given = os.pipe() if stdin == subprocess.PIPE else (_opened(stdin), None)
        umask = os.umask(0)
        os.umask(umask)
        request = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": os.getcwd(),
            "umask": umask,
            "new_session": new_session,
        }
        pid = self._ask(request, [its_input, its_output, stderr, *keep_open])
        os.close(its_input)
        os.close(its_output)
        return ForkedProcess(
            self,
            pid,
            None if given is None else os.fdopen(given, "w"),
            None if output is None else os.fdopen(output),
        )

    def status_of(self, pid: int) -> int:
        """The exit status of an ended program, as in `subprocess`."""
        return self._ask({"ended": pid})

    def close(self) -> None:
        """End the process, and wait until it has written its coverage data."""
        _await_end(self._control)

    def _ask(self, request: dict[str, object], descriptors: Sequence[int] = ()) -> int:
        message = json.dumps(request).encode()
        assert len(message) <= LONGEST_REQUEST
        with self._asking:
            try:
                socket.send_fds(self._control, [message], descriptors)
                return int(json.loads(self._control.recv(LONGEST_REQUEST)))
            except (OSError, ValueError) as error:
                peer = self._control.getpeername()
                asked = request.get("arguments", request)
                raise AssertionError(f"{peer} does not answer {asked}; there are: {_forking()}") from error


_loaded: dict[str, WarmProgram] = {}
os.register_at_fork(after_in_child=_loaded.clear)  # A forked process needs connections of its own.


def warm_program(name: str) -> WarmProgram:
    """The process that forks a program for this one."""
    if name not in _loaded:
        _loaded[name] = WarmProgram(name)
    return _loaded[name]


def begin_run() -> None:
    """Let all programs that this process starts, such as the workers of pytest-xdist, share what is loaded."""
    os.environ[_RUN] = f"{os.getpid()}:{tempfile.mkdtemp(prefix='tests-')}"


def join_run() -> tuple[int, Path]:
    """Return the process that began this run, and the folder of the run's sockets; begin one if there is none."""
    if _RUN not in os.environ:
        begin_run()
    owner, folder = os.environ[_RUN].split(":", 1)
    return int(owner), Path(folder)


def close_warm_programs() -> None:
    """Stop all such processes; in the process that began the run, also those that the others share."""
    while _loaded:
        _loaded.popitem()[1].close()
    owner, folder = join_run()
    if owner != os.getpid():
        return
    for path in folder.iterdir():
        with suppress(ConnectionRefusedError):  # It failed to load.
            _await_end(_connected(path, TO_END))
    shutil.rmtree(folder)


def _loading(name: str, environment: Mapping[str, str]) -> Path:
    """Have a program loaded by one process for all with the same variables; return the address of that process."""
    owner, folder = join_run()
    digest = hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[:8]
    address = folder / f"{name}-{digest}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening, TemporaryDirectory() as own:
        bound = os.path.join(own, "socket")
        listening.bind(bound)
        listening.listen()
        try:
            os.link(bound, address)  # Only the first of several processes succeeds.
        except FileExistsError:
            return address
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.forking", name, str(listening.fileno()), str(owner)],
            cwd=_ROOT,
            pass_fds=[listening.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # The command sets it before it loads gRPC, which this process loads before any fork.
            env={**dict([_SET_BY_PROGRAMS]), **os.environ},
        )
    return address


def _connected(address: Path, purpose: bytes) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.connect(str(address))
    made.send(purpose)
    return made


def _await_end(connection: socket.socket) -> None:
    """Say that nothing more comes, and wait until the process at the other end has exited."""
    with connection:
        connection.settimeout(_PATIENCE_S)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)


def run_forked(
    name: str, arguments: Sequence[str], environment: Mapping[str, str], text: str = "", timeout_s: float = _PATIENCE_S
) -> subprocess.CompletedProcess[str] | None:
    """Run a program to completion.

    Args:
        name: one of the programs above.
        arguments: its command line.
        environment: all of its variables.
        text: its standard input.
        timeout_s: how long it may take, in seconds.

    Returns:
        The result; None if it cannot be forked with these variables.
    """
    warm = warm_program(name)
    if not warm.can_fork(environment):
        return None
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as shown,
        tempfile.TemporaryFile("w+") as errors,
    ):
        given.write(text)
        given.seek(0)
        process = warm.start(arguments, environment, given.fileno(), errors.fileno(), shown.fileno())
        try:
            status = process.wait(timeout_s)
        finally:
            process.kill()
        for file in (shown, errors):
            file.seek(0)
        return subprocess.CompletedProcess(arguments, status, shown.read(), errors.read())


def _forking() -> list[str]:
    """Each process that forks programs: its id, state, parent, and the system call in which it is."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"tests.support.forking" in (folder / "cmdline").read_bytes():
                parts = [(folder / name).read_text().split() for name in ("stat", "wchan", "syscall")]
                found.append(" ".join([*parts[0][:4], *parts[1], *parts[2]]))
    return found


def _opened(stdin: int) -> int:
    return os.open(os.devnull, os.O_RDONLY) if stdin == subprocess.DEVNULL else os.dup(stdin)


def _other_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(_READ_LATE) and (name, value) != _SET_BY_PROGRAMS
    }
