"""How much memory a server takes at most while something is done to it."""

from __future__ import annotations

import threading
from types import TracebackType

import psutil

_INTERVAL_S = 0.01
BYTES_PER_MB = 1 << 20


class MemoryWatch:
    """Looks at a process again and again, as long as its block lasts."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._before = self._peak = self._own_bytes()

    @property
    def rise_mb(self) -> float:
        """Most that it had more than at first, without what it shares with files such as those of tables, in MiB."""
        return (self._peak - self._before) / BYTES_PER_MB

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        self._thread.join()

    def _own_bytes(self) -> int:
        memory = self._process.memory_info()
        return int(memory.rss - memory.shared)

    def _watch(self) -> None:
        while not self._ends.wait(_INTERVAL_S):
            try:
                self._peak = max(self._peak, self._own_bytes())
            except psutil.NoSuchProcess:
                return  # whoever calls it will notice
