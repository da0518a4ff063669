"""Takes the pictures of terminal screens in docs/pictures/: `make screens`, or `python -m scripts.screens`.

Like a user, it trains CartPole with a server in a terminal of 80 x 24 characters, and looks at the run with `replay`.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Sequence
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Final

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

from scripts.pages import environment, namespaces

PICTURES: Final = Path(__file__).resolve().parents[1] / "docs" / "pictures"
COLUMNS, LINES = 80, 24
LONGEST_LINES: Final = 200
"""Maximum output lines of a command that prints and exits."""
TRAINING: Final = ("replay-train", "--server", "localhost:50051", "--name", "cartpole", "--solved-return", "none")
BAR_AT: Final = re.compile(r"1[1-9],\d{3} of [\d,]+ steps(?!.*(?:validating|no step))", re.S)
"""Matches the progress bar at the moment when its picture is taken."""
SPARKLINE: Final = re.compile("[▁-█]{6}")
"""Matches a sparkline that shows the rates of at least six seconds."""
PATIENCE_S: Final = 300.0
_COLORS: Final = {"brown": "yellow", "brightbrown": "bright_yellow"}
"""Colors for which `pyte` has other names."""


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, *command: str, lines: int = LINES) -> None:
        """Start a command."""
        self.title = " ".join(command)
        self._screen = pyte.Screen(COLUMNS, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._end, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", lines, COLUMNS, 0, 0))
        variables = {name: value for name, value in environment().items() if name != "COLUMNS"}
        self._process = subprocess.Popen(
            command, env={**variables, "TERM": "xterm-256color"}, stdin=inner, stdout=inner, stderr=inner
        )
        os.close(inner)

    def wait(self, until: Callable[[str], object]) -> None:
        """Wait until ``until`` accepts the text on the screen.

        Raises:
            RuntimeError: the command ended first, or it takes too long.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not until("\n".join(self._screen.display)):
            if time.monotonic() > deadline or not self._read():
                raise RuntimeError(f"{self.title} shows\n" + "\n".join(self._screen.display))

    def finish(self) -> None:
        """Wait until the command has ended."""
        while self._read():
            pass

    def _read(self) -> bool:
        """Show what the command prints next, waiting for up to a second; return whether it is still running."""
        if select.select([self._end], [], [], 1.0)[0]:
            try:
                self._stream.feed(os.read(self._end, 1 << 16))
            except OSError:
                return False
        return True

    def kill(self) -> None:
        """End the command."""
        self._process.kill()
        self._process.wait()
        os.close(self._end)

    def save(self, path: Path) -> None:
        """Save the screen as an SVG picture, up to its last line that is not empty."""
        rows = [self._row(number) for number in range(self._screen.lines)]
        while not rows[-1].plain.strip():
            rows.pop()
        console = Console(width=COLUMNS, record=True, file=StringIO())
        for row in rows:
            console.print(row, no_wrap=True)
        picture = console.export_svg(title=self.title, unique_id=path.stem)
        # Remove web fonts and trailing spaces.
        path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.S), "utf-8")

    def _row(self, number: int) -> Text:
        chars = [self._screen.buffer[number][column] for column in range(COLUMNS)]
        row = Text()
        for style, found in groupby(chars, _style):
            row.append("".join(char.data for char in found), style)
        return row


def _style(char: pyte.screens.Char) -> Style:
    return Style(
        color=_color(char.fg), bgcolor=_color(char.bg), bold=char.bold, italic=char.italics, reverse=char.reverse
    )


def _color(name: str) -> str:
    if re.fullmatch(r"[0-9a-f]{6}", name):
        return f"#{name}"
    return _COLORS.get(name, re.sub(r"^bright(?=[a-z])", "bright_", name))


def shoot(*command: str) -> None:
    """Run a command to its end, and save a picture of what it printed."""
    terminal = Terminal(*command, lines=LONGEST_LINES)
    terminal.finish()
    terminal.save(PICTURES / f"{'-'.join(command[:2])}.svg")
    terminal.kill()


def take() -> None:
    """Take all pictures, in this process's network namespace."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        server = Terminal("replay-server", "--memory-dir", folder)
        server.wait(lambda text: "listening on" in text)
        trainer = Terminal(*TRAINING)
        trainer.wait(BAR_AT.search)
        trainer.save(PICTURES / "replay-train.svg")
        top = Terminal("replay", "top")
        top.wait(SPARKLINE.search)
        top.save(PICTURES / "replay-top.svg")
        top.kill()
        shoot("replay", "stats")
        shoot("replay", "inspect", "cartpole", "--rows", "2")
        trainer.kill()
        server.kill()


def main(arguments: Sequence[str]) -> int:
    """Take the pictures in separate namespaces, where the default port is free; return an exit status."""
    if arguments:
        take()
        return 0
    return subprocess.run([*namespaces(), sys.executable, "-m", "scripts.screens", "inside"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
