"""A replay server in a separate process, started and stopped like a user would."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.support.deadlines import wait_until
from tests.support.warm_program import SERVER, ForkedProcess, run_forked, warm_program

_READY = re.compile(r"replay-server listening on (\S+):(\d+)\n")
_PATIENCE_S = 60
_PORTS = range(12_000, 32_000)
"""Ports that systems do not give to connections by themselves (Linux gives from 32,768 up)."""


class ServerProcess:
    """``python -m replay_server``, from its start until it is stopped or killed."""

    def __init__(
        self,
        log: Path,
        *flags: str,
        port: int = 0,
        environment: Mapping[str, str] | None = None,
        within: Sequence[str] = (),
        stdin: int = subprocess.DEVNULL,
        forked: bool = False,
    ) -> None:
        """Start the server, and wait until it is ready to serve.

        Args:
            log: file that its standard error is added to.
            *flags: its command line, without ``--port``.
            port: to listen on, also after a restart; 0: a free one that no connection takes in the meantime.
            environment: variables to set besides those of this process.
            within: a command that runs the server, such as ``unshare``; it must exec it.
            stdin: its standard input.
            forked: fork it from a server that is loaded, if it is to run as it would be started here.
        """
        self.flags = flags
        self.port = port or free_port()
        self._log = log
        self._environment = environment or {}
        self._within = within
        self._stdin = stdin
        self._forked = forked and not within
        self.process: subprocess.Popen[str] | ForkedProcess
        self._start()

    @property
    def address(self) -> str:
        """Its address."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid

    @property
    def resident_bytes(self) -> int:
        """Its current memory, excluding memory shared with files."""
        memory = psutil.Process(self.pid).memory_info()
        return int(memory.rss - memory.shared)

    @property
    def cpu_s(self) -> float:
        """CPU time that it has used."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def log(self) -> str:
        """Its log so far."""
        return self._log.read_text("utf-8")

    def wait_for_log(self, text: str, *, before: str = "") -> str:
        """Wait until its log contains a text, which a thread of the server writes; return the log so far.

        Args:
            text: what a line says.
            before: the log before that line.
        """
        wait_until(lambda: text in self.log().removeprefix(before), f"the log says {text!r}")
        return self.log()

    def terminate(self) -> int:
        """Terminate it, and return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end, and return its exit status."""
        status = self.process.wait(_PATIENCE_S)
        self._close_pipes()
        return status

    def kill(self) -> None:
        """Kill the server, unless it has exited."""
        self.process.kill()
        self.process.wait(_PATIENCE_S)
        self._close_pipes()

    def restart(self) -> None:
        """Start it again on the same port with the same flags, after it has ended."""
        assert self.process.poll() is not None, "it still runs"
        self._start()

    def kill_while_starting(self, after_s: float) -> None:
        """Start it again, and kill it after this many seconds, ready or not; it is never forked."""
        self._spawn(forked=False)
        time.sleep(after_s)
        self.kill()

    def _spawn(self, *, forked: bool) -> None:
        flags, environment = (*self.flags, "--port", str(self.port)), server_environment(self._environment)
        with self._log.open("a") as log:
            warm = warm_program(SERVER) if forked else None
            if warm is not None and warm.can_fork(environment):
                self.process = warm.start(flags, environment, self._stdin, log.fileno())
                return
            self.process = subprocess.Popen(
                [*self._within, *server_command(*flags)],
                env=environment,
                stdin=self._stdin,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def _start(self) -> None:
        self._spawn(forked=self._forked)
        assert self.process.stdout is not None
        first_line = self.process.stdout.readline()
        ready = _READY.fullmatch(first_line)
        if ready is None:
            self.kill()
            raise AssertionError(f"the server did not start; it said {first_line!r} and logged:\n{self.log()}")
        self.port = int(ready[2])

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def free_port() -> int:
    """A free port that stays free: the system gives it to no other process that leaves the choice to it."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def server_command(*flags: str) -> list[str]:
    """The command that runs the server under this interpreter."""
    return [sys.executable, "-m", "replay_server", *flags]


def server_environment(given: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with the given server settings instead of existing ones."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("REPLAY_")}
    return {**inherited, **given}


def run_to_its_end(
    *flags: str, environment: Mapping[str, str] | None = None, forked: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a server that is expected to refuse to start; without a port among the flags it picks one.

    Args:
        *flags: its command line.
        environment: variables to set besides those of this process.
        forked: fork it from a server that is loaded, if it is to run as it would be started here.
    """
    arguments = (*flags, *(() if "--port" in flags else ("--port", "0")))
    variables = server_environment(environment or {})
    done = run_forked(SERVER, arguments, variables) if forked else None
    return done or subprocess.run(
        server_command(*arguments),
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
