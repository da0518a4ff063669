"""How the backends' inner loops are compiled: one typed decorator around `numba.njit`.

Compiled kernels are cached on disk. Numba decides whether a cached kernel still fits by the age of the one file it
stands in, but kernels here call kernels of other files. So the cache lies in a folder named after the text of all
files of this package: when one changes, every kernel is compiled anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

Kernel = TypeVar("Kernel", bound=Callable[..., object])
Element = TypeVar("Element", bound=np.generic)

CACHE_LINE_BYTES = 64

_PACKAGE = Path(__file__).parent


def _source_digest() -> str:
    """Return a short name for the text of all files of this package."""
    digest = hashlib.sha256()
    for file in sorted(_PACKAGE.rglob("*.py")):
        digest.update(str(file.relative_to(_PACKAGE)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _choose_cache_folder() -> None:
    """Point numba at a cache folder of these very sources, inside ``NUMBA_CACHE_DIR`` if that is set."""
    config: Any = numba.config
    base = Path(config.CACHE_DIR or _PACKAGE / "__pycache__")
    config.CACHE_DIR = str(base / f"kernels-{_source_digest()}")


_choose_cache_folder()


def kernel(function: Kernel) -> Kernel:
    """Compile a function of arrays and numbers to machine code on its first call, or load it from the cache."""
    return cast(Kernel, numba.njit(nogil=True, cache=True, error_model="numpy")(function))


def part_of_kernel(function: Kernel) -> Kernel:
    """Compile a function that kernels call for one row after the other into each of them.

    In a call proper numba counts the references to each array it is given, which takes longer than looking at a row.
    Such a function has no branch in it that calls another one with its arrays: across branches it would count as well.
    """
    return cast(Kernel, numba.njit(nogil=True, cache=True, error_model="numpy", forceinline=True)(function))


def as_kernel_input(array: NDArray[Element]) -> NDArray[Element]:
    """Return the array, or a copy if it is read-only, strided or unaligned.

    A kernel is compiled once per layout of its arguments. Arrays that come straight from a message are read-only:
    without this, the first of them would stop the server for as long as a compilation takes.
    """
    return array if array.flags.carray else np.array(array, order="C")


def aligned_empty(length: int) -> NDArray[np.float64]:
    """Return float64[length], not yet written to, that begins at the beginning of a cache line."""
    spare = CACHE_LINE_BYTES // 8
    memory = np.empty(length + spare, dtype=np.float64)
    skip = (-memory.ctypes.data % CACHE_LINE_BYTES) // 8
    return memory[skip : skip + length]


def aligned_full(length: int, value: float) -> NDArray[np.float64]:
    """Return float64[length], filled with ``value``, that begins at the beginning of a cache line."""
    aligned = aligned_empty(length)
    aligned[:] = value
    return aligned
