"""Processes that the trainer starts: they never outlive it, and Ctrl-C in the terminal reaches the trainer alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

LOG_TAIL_LINES = 15


def start_module(
    module: str,
    arguments: Sequence[str],
    log_path: Path,
    *,
    pipe_output: bool,
    environment: Mapping[str, str] | None = None,
    keep_open: Sequence[int] = (),
) -> subprocess.Popen[str]:
    """Run ``python -m module`` with its log in a file.

    Its standard input is a pipe that ends when this process dies, however it dies; it lives in a session of its own,
    so that a terminal's Ctrl-C does not reach it before it is told to stop.

    Args:
        module: to run.
        arguments: its command line.
        log_path: file that its standard error is appended to.
        pipe_output: whether its standard output can be read; it goes to the log otherwise.
        environment: its variables; None: those of this process.
        keep_open: file descriptors that it inherits, and so holds until it ends.
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
    """Ask a process to stop, and make it if it does not within ``timeout_s`` seconds."""
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
    """The last lines of a log."""
    try:
        lines = log_path.read_text(errors="replace").splitlines()
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(lines[-LOG_TAIL_LINES:])


def when_parent_dies(stop: Callable[[], object]) -> None:
    """Call ``stop`` from another thread when standard input ends: whoever holds its other end is gone."""

    def watch() -> None:
        # Not sys.stdin.read(): it holds a lock that the interpreter wants when it ends.
        while os.read(sys.stdin.fileno(), 1):
            pass
        stop()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
