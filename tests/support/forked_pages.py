"""Runs the pages of the documentation that are named on its standard input, with forked programs.

Starting each block in a fresh process, as `scripts.pages` does, would import torch and the server's modules dozens of
times. Here, a process imports them once, and forks for each block that needs no shell. An empty line follows what is
said about each page. The first block that fails ends the run.
"""

from __future__ import annotations

import atexit
import importlib
import os
import shlex
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from replay_client import local_server

from scripts.pages import Block, Page, Process, environment, run_pages
from tests.support.forked_modules import fork_module
from tests.support.warm_program import PAGES, REPLAY, SERVER, begin_run, close_warm_programs, warm_program

_COMMANDS = (SERVER, REPLAY)
_MODULES = (
    "replay_client.sb3",
    "torch._dynamo",  # torch imports it with the first optimizer
)
_SHELL = frozenset("$|&;<>()`*?[{~=\\")
"""Characters that only a shell understands."""


class ForkedPage(Page):
    """A page whose programs are forked."""

    def start(self, block: Block, output: int) -> Process:
        """Fork a program, or the commands of a block that needs no shell; anything else is started as usual."""
        is_plain = block.language == "python" or all(map(_is_plain, block.text.splitlines()))
        if not is_plain or self.variables.stat().st_size:
            return super().start(block, output)
        warm, given = warm_program(PAGES), [block.language, block.text]
        with chdir(self.folder):
            return warm.start(given, os.environ, subprocess.DEVNULL, output, output, new_session=True)


def load_pages(mains: dict[str, Callable[[], None]]) -> Callable[[], None]:
    """Load what pages use.

    Args:
        mains: the main functions of commands.

    Returns:
        A function that runs the block whose language and text are this process's arguments.
    """
    warm_program(SERVER)  # for the local servers of all programs
    for module in _MODULES:
        importlib.import_module(module)

    def run() -> None:
        _, language, text = sys.argv
        if language == "python":
            vars(local_server)["start_module"] = fork_module
            _run_and_exit(lambda: _run_program(text))
        lines = [shlex.split(line, comments=True) for line in text.splitlines()]
        _run_and_exit(lambda: _run_commands(mains, list(filter(None, lines))))

    return run


def _run_and_exit(program: Callable[[], None]) -> NoReturn:
    """Run a program and exit without freeing all loaded modules, which would take 0.4 s."""
    status = 0
    try:
        program()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def _is_plain(line: str) -> bool:
    words = line.partition("  #")[0].split()
    return not words or (words[0] in _COMMANDS and _SHELL.isdisjoint(" ".join(words)))


def _run_program(text: str) -> None:
    """Run a program like ``python -c``."""
    sys.argv = ["-c"]
    sys.path[0] = ""
    sys.modules["__main__"] = main = ModuleType("__main__")
    exec(compile(text, "<block>", "exec"), vars(main))


def _run_commands(mains: dict[str, Callable[[], None]], commands: list[list[str]]) -> None:
    """Run commands up to the first that fails, the last one in this process."""
    for words in commands:
        child = 0 if words is commands[-1] else os.fork()
        if child == 0:
            sys.argv = words
            mains[words[0]]()
            return
        if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            sys.exit(status)


def _named() -> Iterator[Path]:
    for line in sys.stdin:
        yield Path(line.rstrip("\n"))
        print(flush=True)


if __name__ == "__main__":
    os.environ.update(environment())  # programs can only be forked with the variables of this process
    begin_run()  # with a network of its own
    try:
        sys.exit(run_pages(_named(), ForkedPage))
    finally:
        close_warm_programs()
