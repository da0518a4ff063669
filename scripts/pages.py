"""Runs the blocks of documentation pages: `python -m scripts.pages PAGE ...`, within `namespaces`.

The blocks of a page run in order, in a fresh folder and a separate network, with this environment's commands on the
path. So commands can run exactly as printed: ports are free, and the host names `buffer` and `learner` refer to this
machine. After the last block of a page, programs that are still running are stopped. The first block that fails ends
the run.

Every block names its language. `bash` and `python` blocks are run; variables that a shell exports apply to all later
blocks. `toml` blocks must be valid, and `text` blocks are only shown. A comment in the line above a block changes this:

    <!-- not run: REASON -->       the block cannot run here
    <!-- run by: PAGE -->          another page has the same lines, and runs them
    <!-- file: NAME -->            the block is the content of this file
    <!-- background: TEXT -->      the block runs until the end of the page, and is ready once it has printed TEXT
    <!-- output -->               the block is the output of the previous block; numbers may differ
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
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

ROOT: Final = Path(__file__).resolve().parents[1]
PATIENCE_S: Final = 180.0
"""Time limit for a block to end or, in the background, to become ready."""
STOP_S: Final = 30.0
"""Time limit for a background program to end."""
PAGES: Final = (
    ROOT / "README.md",
    *(page for page in sorted(ROOT.glob("docs/**/*.md")) if page.parent.name != "site"),
)
"""All pages of the documentation that are not generated."""
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
    """Line of the page where the block begins."""
    language: str
    """Language of the block, one of `LANGUAGES`."""
    mark: str
    """The mark in the comment above it, one of `MARKS`, or empty."""
    argument: str
    """What follows the mark and a colon, or empty."""
    text: str
    """Content of the block."""


def blocks_of(page: Path) -> list[Block]:
    """Return all blocks of a page in order.

    Raises:
        BlockError: a block names no language, or has an unknown mark.
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


class Process(Protocol):
    """A running block: `subprocess.Popen` or a substitute."""

    @property
    def pid(self) -> int:
        """Id of the process, which leads a session."""

    def poll(self) -> int | None:
        """Exit status; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process ends, and return its exit status."""


class Page:
    """Runs the blocks of a page in a folder."""

    def __init__(self, path: Path, folder: Path, logs: Path, running: ExitStack) -> None:
        """Prepare to run a page.

        Args:
            path: the page.
            folder: empty working directory for the blocks.
            logs: empty directory for the blocks' output and variables.
            running: stops the programs that blocks leave running.
        """
        self._path = path
        self.folder = folder
        self._logs = logs
        self._running = running
        self.variables = logs / "variables"
        self.variables.touch()
        self._output = ""

    def run(self) -> Iterator[tuple[Block, str]]:
        """Run the page block by block, and yield each block's outcome.

        Raises:
            BlockError: a block did not do what the page says.
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
                (self.folder / block.argument).write_text(block.text, "utf-8")
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

    def _spawn(self, block: Block, log: Path) -> Process:
        with log.open("wb") as file:
            process = self.start(block, file.fileno())
        self._running.callback(end, process)
        return process

    def start(self, block: Block, output: int) -> Process:
        """Start a block of code as a program. Its output goes to the file descriptor ``output``."""
        if block.language == "python":
            command = [sys.executable, "-c", block.text]
        else:
            program = f"set -euo pipefail\n. {self.variables}\n{block.text}"
            if block.mark != "background":
                program += f"export -p > {self.variables}\n"
            command = ["bash", "-c", program]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @staticmethod
    def _look_for(block: Block, other: Path) -> None:
        """Check that another page runs all lines of a block."""
        run = {line for found in blocks_of(other) if not found.mark.endswith("run") for line in lines_of(found.text)}
        if missing := [line for line in lines_of(block.text) if line not in run]:
            raise BlockError(f"expected the same line in {other}, found none: {missing[0]}")


def end(process: Process) -> None:
    """Stop a block and all programs that it started, which share its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def lines_of(text: str) -> list[str]:
    """Return the lines of a block, without comments and surrounding space."""
    return [line for line in (line.partition("  #")[0].strip() for line in text.splitlines()) if line]


def compare(expected: str, printed: str) -> None:
    """Check that these lines were printed in this order. Other lines may occur between them; numbers may differ.

    Raises:
        BlockError: a line was not printed.
    """
    remaining = iter([_loose(line) for line in printed.splitlines()])
    for line in filter(None, map(str.strip, expected.splitlines())):
        if _loose(line) not in remaining:
            raise BlockError(f"expected the output to have the line {line!r}; it printed\n{printed}")


def _loose(line: str) -> str:
    return " ".join(_NUMBER.sub("#", line).split())


def environment() -> dict[str, str]:
    """Return the environment variables that every block starts with."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("REPLAY_")}
    commands = str(Path(sys.executable).parent)
    folders = inherited.get("PATH", os.defpath).split(os.pathsep)
    search = os.pathsep.join([commands, *(folder for folder in folders if folder != commands)])
    return {**inherited, "PATH": search, "COLUMNS": "80", "PYTHONUNBUFFERED": "1"}


def namespaces() -> list[str]:
    """Return a command prefix that runs a command in separate network, mount and process namespaces."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def run_pages(pages: Iterable[Path], kind: type[Page] = Page) -> int:
    """Run pages in the namespaces of this process; return 1 if a block failed, otherwise 0."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory(prefix="docs-") as name:
        hosts = Path(name) / "hosts"
        hosts.write_text(HOSTS)
        subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
        try:
            for page in pages:
                _run_page(page, Path(name) / page.stem, kind)
        except BlockError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


def _run_page(page: Path, folder: Path, kind: type[Page]) -> None:
    work, logs = folder / "page", folder / "logs"
    work.mkdir(parents=True)
    logs.mkdir()
    shown = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
    with ExitStack() as running:
        for block, result in kind(page, work, logs, running).run():
            print(f"{shown!s:<24}{block.line:>5}  {block.language:<7} {result}", flush=True)


if __name__ == "__main__":
    sys.exit(run_pages([Path(page).resolve() for page in sys.argv[1:]]))
