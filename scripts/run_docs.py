"""Runs every command and program of the documentation: `make docs`, or `python scripts/run_docs.py [PAGE ...]`.

Each page runs from its first block to its last in a fresh folder, with the commands of this environment on the path and
in a network of its own, so that commands stay as they are printed: ports are free, and `buffer` and `learner` are names
of this machine. What still runs at the end of a page is ended with it. The first block that fails ends the run.

Every block names its language. `bash` and `python` are run; variables that a shell exports hold for the blocks below.
`toml` has to be readable, and `text` is only shown. A comment in the line above says what is different:

    <!-- not run: REASON -->       it cannot run here
    <!-- run by: PAGE -->          another page has the same lines, and runs them
    <!-- file: NAME -->            it is the content of this file
    <!-- background: TEXT -->      it goes on until the end of the page, and is ready once it has printed TEXT
    <!-- output -->               it is what the block before printed; numbers may differ
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from replay_proto.command_line import new_app, run_app

ROOT: Final = Path(__file__).resolve().parents[1]
PATIENCE_S: Final = 180.0
"""For a block to end, or to be ready."""
STOP_S: Final = 30.0
"""For a program in the background to end."""
NO_NAMESPACE: Final = 77
"""Exit status where this machine allows no network of one's own, as test harnesses use it for `skipped`."""
HOSTS: Final = "127.0.0.1 localhost buffer learner\n::1 localhost\n"
LANGUAGES: Final = ("bash", "python", "text", "toml")
MARKS: Final = ("not run", "run by", "file", "background", "output")
_FENCE: Final = re.compile(r"(?:^<!-- (?P<mark>[^\n]*) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
_NUMBER: Final = re.compile(r"\d[\d.,]*")


class BlockError(Exception):
    """A block did not do what the page says."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    line: int
    """Of the page, where it begins."""
    language: str
    """Its language."""
    mark: str
    """The mark in the comment above it, one of `MARKS`, or empty."""
    argument: str
    """Argument of the mark."""
    text: str
    """Its content."""


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page in order.

    Raises:
        BlockError: one names no language, or has a mark that is none.
    """
    content = page.read_text("utf-8")
    found = []
    for match in _FENCE.finditer(content):
        line = content.count("\n", 0, match.start("language")) + 1
        mark, _, argument = (match["mark"] or "").partition(": ")
        if match["language"] not in LANGUAGES:
            raise BlockError(f"{page}:{line}: expected one of {', '.join(LANGUAGES)}, got {match['language']!r}")
        if mark and (mark not in MARKS or (not argument and mark != "output")):
            raise BlockError(f"{page}:{line}: expected one of {', '.join(MARKS)} with its argument, got {mark!r}")
        found.append(Block(line, match["language"], mark, argument, match["text"]))
    return found


class Page:
    """Runs the blocks of a page in a folder."""

    def __init__(self, path: Path, folder: Path, logs: Path, running: ExitStack) -> None:
        """Begin with a page.

        Args:
            path: the page.
            folder: empty; what the blocks work in.
            logs: empty; for what they print, and the variables they set.
            running: ends what they leave running.
        """
        self._path = path
        self._folder = folder
        self._logs = logs
        self._running = running
        self._variables = logs / "variables"
        self._variables.touch()
        self._output = ""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("REPLAY_")}
        search = f"{Path(sys.executable).parent}{os.pathsep}{inherited.get('PATH', os.defpath)}"
        self._environment = {**inherited, "PATH": search, "COLUMNS": "80", "PYTHONUNBUFFERED": "1"}

    def run(self) -> Iterator[tuple[Block, str]]:
        """Run block by block; yields what became of each.

        Raises:
            BlockError: one did not do what the page says.
        """
        for block in blocks_of(self._path):
            try:
                yield block, self._run(block)
            except (BlockError, tomllib.TOMLDecodeError) as error:
                raise BlockError(f"{self._path}:{block.line}: {error}\n{block.text}") from error

    def _run(self, block: Block) -> str:
        match block.mark, block.language:
            case "not run", _:
                return f"not run: {block.argument}"
            case "run by", _:
                self._look_for(block, ROOT / block.argument)
                return f"run by {block.argument}"
            case "file", _:
                (self._folder / block.argument).write_text(block.text, "utf-8")
                return f"written to {block.argument}"
            case "output", _:
                compare(block.text, self._output)
                return "as printed"
            case "background", _:
                self._start(block)
                return "running"
            case _, "toml":
                tomllib.loads(block.text)
                return "read"
            case _, "text":
                return "shown"
        return self._finish(block)

    def _finish(self, block: Block) -> str:
        """Run a block to its end."""
        began = time.monotonic()
        log = self._logs / f"{block.line}.log"
        process = self._spawn(block, log)
        try:
            status = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise BlockError(f"expected an end within {PATIENCE_S:.0f} s; it printed\n{log.read_text()}") from None
        self._output = log.read_text("utf-8")
        if status:
            raise BlockError(f"expected the exit status 0, got {status}; it printed\n{self._output}")
        return f"done in {time.monotonic() - began:.1f} s"

    def _start(self, block: Block) -> None:
        """Start a block in the background, and wait until it prints its ready message."""
        log = self._logs / f"{block.line}.log"
        process = self._spawn(block, log)
        deadline = time.monotonic() + PATIENCE_S
        while block.argument not in log.read_text("utf-8"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise BlockError(f"expected {block.argument!r}; it printed\n{log.read_text('utf-8')}")
            time.sleep(0.05)
        self._output = log.read_text("utf-8")

    def _spawn(self, block: Block, log: Path) -> subprocess.Popen[bytes]:
        if block.language == "python":
            command = [sys.executable, "-c", block.text]
        else:
            program = f"set -euo pipefail\n. {self._variables}\n{block.text}"
            if block.mark != "background":
                program += f"export -p > {self._variables}\n"
            command = ["bash", "-c", program]
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running.callback(end, process)
        return process

    @staticmethod
    def _look_for(block: Block, other: Path) -> None:
        """Check that a page runs all lines of a block."""
        run = {line for found in blocks_of(other) if not found.mark.endswith("run") for line in lines_of(found.text)}
        if missing := [line for line in lines_of(block.text) if line not in run]:
            raise BlockError(f"expected the same line in {other}, found none: {missing[0]}")


def end(process: subprocess.Popen[bytes]) -> None:
    """End a block and what it started; they are a session of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def lines_of(text: str) -> list[str]:
    """The lines of a block, without comments and the space around them."""
    return [line for line in (line.partition("  #")[0].strip() for line in text.splitlines()) if line]


def compare(expected: str, printed: str) -> None:
    """Check that lines were printed in this order, with others between them or not; numbers may differ.

    Raises:
        BlockError: one was not.
    """
    remaining = iter([_loose(line) for line in printed.splitlines()])
    for line in filter(None, map(str.strip, expected.splitlines())):
        if _loose(line) not in remaining:
            raise BlockError(f"expected the output to have the line {line!r}; it printed\n{printed}")


def _loose(line: str) -> str:
    return " ".join(_NUMBER.sub("#", line).split())


def run_inside(page: Path) -> int:
    """Run a page in the namespaces that this process is in; returns an exit status."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory(prefix="docs-") as name, ExitStack() as running:
        folder, logs = Path(name) / "page", Path(name) / "logs"
        folder.mkdir()
        logs.mkdir()
        hosts = Path(name) / "hosts"
        hosts.write_text(HOSTS)
        subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
        shown = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
        try:
            for block, result in Page(page, folder, logs, running).run():
                print(f"{shown!s:<24}{block.line:>5}  {block.language:<7} {result}", flush=True)
        except BlockError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


def namespaces() -> list[str]:
    """The command that runs another one with a network, mounts and processes of its own."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def inside_command(page: Path) -> list[str]:
    """The command that runs a page in namespaces of its own."""
    return [*namespaces(), sys.executable, __file__, "--inside", str(page)]


def main(*pages: Path, inside: Annotated[bool, Parameter(show=False)] = False) -> int:
    """Run pages; returns 0, 1 if a block failed, or `NO_NAMESPACE`.

    Args:
        *pages: pages to run; all if absent.
        inside: whether this process has a network of its own.
    """
    pages = tuple(page.resolve() for page in pages) or (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))
    if inside:
        return run_inside(pages[0])
    found = subprocess.run([*namespaces(), "true"], capture_output=True, text=True, check=False)
    if found.returncode:
        print(f"no network of its own can be made here: {found.stderr.strip()}", file=sys.stderr)
        return NO_NAMESPACE
    for page in pages:
        done = subprocess.run(inside_command(page), check=False)
        if done.returncode:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(run_app(new_app("scripts/run_docs.py", __doc__, main)))
