"""Sets up what surrounds the server in its process: its log, temporary files, open files, garbage collection.

Events carry fields: ``log.info("table %s dropped", name, extra={"table": name, "duration_s": 0.1})``. JSON shows all
fields. Text shows only those that are part of the message.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from replay_server.files.standard_error import STANDARD_ERROR

log = logging.getLogger(__name__)


def ensure_temporary_directory(others: Iterable[Path | None]) -> None:
    """If the usual directories for temporary files are missing or read-only, use the first of the ``others`` instead.

    That is so in a container with a read-only root. Does nothing if none of them is writable; what needs one says so.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        for folder in others:
            if folder is not None and _is_writable(folder):
                tempfile.tempdir = str(folder)
                log.info("temporary files are in %s, because no usual directory for them is writable", folder)
                return


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


LogFormat = Literal["text", "json"]
_TEXT: Final = "%(asctime)s %(levelname)-7s %(name)s  %(message)s"
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
"""Attributes of records that are not fields of an event."""


def set_up_logging(level: str, form: LogFormat) -> None:
    """Log to standard error, from a thread; ``level`` is a name such as ``info``."""
    STANDARD_ERROR.start()
    handler = logging.StreamHandler(STANDARD_ERROR)
    handler.setFormatter(logging.Formatter(_TEXT) if form == "text" else JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])


class JsonLines(logging.Formatter):
    """Formats each event as a JSON object on one line, with its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        event = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _OWN and value != ""},
        }
        if record.exc_info:
            event["error"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str)


def allow_many_files() -> None:
    """Raise this process's limit on file descriptors as far as allowed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


_LEAST_INTERVAL_S: Final = 0.5
_INTERVAL_PER_SQUARE: Final = 8000.0
"""This number, times the squared duration of a full collection in seconds, is the time until the next one in seconds:
0.8 s after 10 ms, 12 minutes after 0.3 s. So long collections do not affect the 99th percentile of calls."""
_MANY_CALLS: Final = 100
"""If so many more calls are open than one interval ago, a collection takes longer than the last one."""
_MOST_POSTPONED: Final = 10
"""Intervals for which a collection is postponed while calls begin: garbage of other calls must not pile up."""
_NEVER: Final = (1 << 31) - 1


@contextmanager
def loading() -> Iterator[None]:
    """Disable garbage collection in the block, and exempt all objects that exist at its end from later collections.

    Numba's modules contain 145,000 objects that never become garbage. Scanning them would take 0.1 s at startup and
    0.2 s at shutdown, and each scan in between would block all calls for 60 ms.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class RareCollections:
    """Full collections: often if they are short, rarely if they are long.

    A full collection blocks all calls, for 0.3 s if 10,000 streams are open. By default, Python runs one whenever the
    number of objects has grown by a quarter, so a client that opens many streams would cause several within seconds.
    But collections must not be too rare: gRPC keeps each call in a reference cycle, with up to 4 KB of metadata.
    Python's automatic collections of young objects continue, but they miss the cycles of longer calls.

    A collection waits while many calls begin. With 1,000 new calls it takes 80 ms on a busy machine, and while it
    blocks the event loop, nobody bounds what their messages take.
    """

    def __init__(self, open_calls: Callable[[], int], interval_s: float = _LEAST_INTERVAL_S) -> None:
        """Take over full collections from Python, until `close`.

        Args:
            open_calls: tells how many calls are open.
            interval_s: least number of seconds between two collections.
        """
        self._open_calls = open_calls
        self._interval_s = interval_s
        self._thresholds = gc.get_threshold()
        self._took_s = 0.0
        gc.set_threshold(*self._thresholds[:2], _NEVER)

    async def collect(self) -> None:
        """Wait until the next full collection is due, and run it."""
        calls = self._open_calls()
        await asyncio.sleep(max(self._interval_s, _INTERVAL_PER_SQUARE * self._took_s**2))
        for _ in range(_MOST_POSTPONED):
            before, calls = calls, self._open_calls()
            if calls < before + _MANY_CALLS:
                break
            await asyncio.sleep(self._interval_s)
        began = time.perf_counter()
        gc.collect()
        self._took_s = time.perf_counter() - began

    def close(self) -> None:
        """Leave full collections to Python again."""
        gc.set_threshold(*self._thresholds)
