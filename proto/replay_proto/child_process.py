"""Runs child processes that end when their parent ends, and that Ctrl-C in the parent's terminal does not reach."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

LOG_TAIL_LINES: Final = 15
_PARENT_LOOK_S: Final = 0.5


def start_module(
    module: str,
    arguments: Sequence[str],
    log_path: Path,
    *,
    pipe_output: bool,
    environment: Mapping[str, str] | None = None,
    keep_open: Sequence[int] = (),
) -> subprocess.Popen[str]:
    """Run ``python -m module`` and append its standard error to a log.

    The child's standard input is a pipe that closes when this process dies, even by SIGKILL. The child runs in a
    separate session, so Ctrl-C in the terminal does not reach it. If ``pipe_output`` is set, its standard output is a
    pipe; otherwise, it goes to the log. The child inherits the file descriptors ``keep_open``.
    """
    with log_path.open("a") as log_file:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if pipe_output else log_file,
            stderr=log_file,
            text=True,
            start_new_session=True,
            env=environment,
            pass_fds=keep_open,
        )


def stop(process: subprocess.Popen[str], timeout_s: float) -> None:
    """Terminate a process, and kill it if it has not ended within ``timeout_s`` seconds."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def log_tail(log_path: Path) -> str:
    """Return the last lines of a log."""
    try:
        lines = log_path.read_text(errors="replace").splitlines()
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(lines[-LOG_TAIL_LINES:])


def when_parent_dies(stop: Callable[[], object]) -> None:
    """Call ``stop`` from another thread when the parent process dies, or closes this process's standard input.

    The thread also watches the parent's process id, because the pipe stays open as long as another process forked by
    the parent holds the other end.
    """
    parent, stdin = os.getppid(), sys.stdin.fileno()

    def is_closed() -> bool:
        try:
            # Unlike sys.stdin.read(), os.read() does not keep a lock that the interpreter needs at shutdown.
            return bool(select.select([stdin], [], [], _PARENT_LOOK_S)[0]) and not os.read(stdin, 1)
        except OSError:  # for example, a broken connection
            return True

    def watch() -> None:
        while os.getppid() == parent and not is_closed():
            pass
        stop()

    # A daemon thread does not delay the exit if the process ends for another reason.
    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
