"""Loading modules and kernels, which the garbage collector is kept away from."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Collect nothing meanwhile, and never look through what is there at the end.

    Numba's modules are 145,000 objects, of which none is ever garbage. To look through them costs the collector 0.1 s
    of a server's start and 0.2 s of its end, and would hold up all calls for 60 ms each time in between.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
