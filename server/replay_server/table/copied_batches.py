"""The latest batches whose rows the callers copy from the table's files.

If inserts overwrite the rows meanwhile, the caller draws a replacement, which is not counted again. Each batch can be
replaced once.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_MOST: Final = 4_096
"""Number of remembered batches; more than learners prefetch. A replacement of an older one counts as another draw."""


class CopiedBatches:
    """Remembers callers and sizes of batches."""

    def __init__(self) -> None:
        """Start without batches."""
        self._latest: deque[tuple[str, int]] = deque(maxlen=_MOST)

    def add(self, caller: str, batch_size: int, batches: int) -> None:
        """Remember batches of this size, drawn by the caller with this identity."""
        self._latest.extend([(caller, batch_size)] * batches)

    def has(self, caller: str, batch_size: int, batches: int) -> bool:
        """Whether the caller can replace this many batches."""
        return self._latest.count((caller, batch_size)) >= batches

    def take(self, caller: str, batch_size: int, batches: int) -> None:
        """Forget batches that are being replaced."""
        for _ in range(batches):
            self._latest.remove((caller, batch_size))

    def clear(self) -> None:
        """Forget all batches, because the table is being reset."""
        self._latest.clear()
