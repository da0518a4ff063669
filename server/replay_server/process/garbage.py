"""Keeps pauses for garbage collection short and rare."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_FULL_COLLECTION_EVERY_S: Final = 60.0
_NEVER: Final = (1 << 31) - 1


@contextmanager
def loading() -> Iterator[None]:
    """Disable garbage collection in the block, and freeze all objects that exist at its end.

    Numba's modules contain 145,000 objects that never become garbage. Scanning them would take 0.1 s at startup and
    0.2 s at shutdown, and each scan in between would block all calls for 60 ms.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


async def collect_rarely(every_s: float = _FULL_COLLECTION_EVERY_S) -> None:
    """Until cancelled, run full collections only every ``every_s`` seconds.

    A full collection blocks all calls, for 0.3 s if 10,000 streams are open. By default, Python runs one whenever the
    number of objects has grown by a quarter, so a client that opens many streams would cause several within seconds.
    Collections of young objects continue as usual.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(*thresholds[:2], _NEVER)
    try:
        while True:
            await asyncio.sleep(every_s)
            gc.collect()
    finally:
        gc.set_threshold(*thresholds)
