"""Measures a server's peak memory during an operation."""

from __future__ import annotations

import threading
from types import TracebackType

import psutil

_INTERVAL_S = 0.01
BYTES_PER_MB = 1 << 20


class MemoryWatch:
    """Samples a process's memory until the block ends."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._before = self._peak = self._own_bytes()

    @property
    def rise_mb(self) -> float:
        """Maximum increase in MiB, excluding memory shared with files, such as tables."""
        return (self._peak - self._before) / BYTES_PER_MB

    @property
    def now_mb(self) -> float:
        """The present increase in MiB, as in `rise_mb`."""
        return (self._own_bytes() - self._before) / BYTES_PER_MB

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
                return  # the caller will notice
