"""The files that a call passes through: those on the stack when certain functions are called."""

from __future__ import annotations

import atexit
import json
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any


class CallPaths:
    """Stacks of calls, as files of one package, from the outermost call to the watched function."""

    def __init__(self, package: Path) -> None:
        self.seen: set[tuple[str, ...]] = set()
        self._package = package

    def watched(self, owner: type, name: str) -> Callable[..., Any]:
        """A method that also records from where it is called."""
        original: Callable[..., Any] = getattr(owner, name)
        own = original.__code__.co_filename

        def method(*arguments: Any, **options: Any) -> Any:
            self.seen.add(self._files(own))
            return original(*arguments, **options)

        return method

    def take(self) -> set[tuple[str, ...]]:
        """Return what was seen, and forget it."""
        taken, self.seen = self.seen, set()
        return taken

    def _files(self, own: str) -> tuple[str, ...]:
        files = [own]
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            files.append(frame.f_code.co_filename)
            frame = frame.f_back
        inside = [
            str(Path(file).relative_to(self._package)) for file in files if Path(file).is_relative_to(self._package)
        ]
        return tuple(file for file, _ in groupby(reversed(inside)))


def watch_server(into: str) -> None:
    """In a server's process: write what is seen to a file when it exits."""
    import replay_server
    from replay_server.backends.sum_tree import SumTree
    from replay_server.storage.header import Header
    from replay_server.storage.row_store import RowStore

    paths = CallPaths(Path(replay_server.__file__).parent)
    for owner, name in ((RowStore, "write"), (Header, "store"), (SumTree, "write"), (SumTree, "draw")):
        setattr(owner, name, paths.watched(owner, name))
    atexit.register(lambda: Path(into).write_text(json.dumps(sorted(paths.seen)), "utf-8"))
