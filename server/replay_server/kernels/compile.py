"""Typed decorators around `numba.njit` for hot loops; see `kernel_cache` for their cache."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core import caching
from numba.core import types as numba_types
from numpy.typing import NDArray

from replay_server.errors import FatalError
from replay_server.kernels import kernel_cache

log = logging.getLogger(__name__)

Kernel = TypeVar("Kernel", bound=Callable[..., object])
Element = TypeVar("Element", bound=np.generic)

Floats = NDArray[np.float64]
"""float64[...]. Most arguments of kernels are `Floats` or `Integers`."""
Integers = NDArray[np.int64]

CACHE_LINE_BYTES = 64

KERNELS: list[Any] = []
"""The numba dispatchers of all kernels; `replay_server.process.warming` compiles them."""

types: Any = numba_types
numba_caching: Any = caching

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]  # numba sets it from the environment
    raise FatalError("NUMBA_DISABLE_JIT: expected 0 or nothing, because kernels must be compiled, got 1; unset it")


def kernel(function: Kernel) -> Kernel:
    """Compile a function of arrays and numbers to machine code on its first call, or load it from the cache."""
    return cast(Kernel, _compiled(function))


def part_of_kernel(function: Kernel) -> Kernel:
    """Inline a function that kernels call once per row.

    In a regular call, numba counts references to each array argument, which takes longer than processing a row. An
    inlined function must not pass its arrays to another function inside a branch: numba would count references there.
    """
    return cast(Kernel, _compiled(function, forceinline=True))


def _compiled(function: Callable[..., object], *, forceinline: bool = False) -> Any:
    # Functions in files that the digest does not cover, such as tests, are compiled by every process.
    is_covered = Path(function.__code__.co_filename) in kernel_cache.sources()
    dispatcher = _dispatcher(function, cached=is_covered, forceinline=forceinline)
    if is_covered:
        # If numba cannot write to this folder, it falls back to folders that all versions share.
        if not Path(dispatcher.stats.cache_path).is_relative_to(kernel_cache.folder()):
            return _dispatcher(function, cached=False, forceinline=forceinline)
        KERNELS.append(dispatcher)
    return dispatcher


def _dispatcher(function: Callable[..., object], *, cached: bool, forceinline: bool) -> Any:
    config: Any = numba.config
    before, ensure_writable = config.CACHE_DIR, numba_caching._CacheLocator.ensure_cache_path
    # Numba reads this setting while it creates the dispatcher. Other users of numba in this process keep theirs.
    config.CACHE_DIR = str(kernel_cache.folder()) if cached else before
    # Then it would refuse a read-only folder, although it only has to load kernels from it.
    numba_caching._CacheLocator.ensure_cache_path = _do_nothing if cached else ensure_writable
    try:
        decorate = numba.njit(nogil=True, cache=cached, error_model="numpy", forceinline=forceinline)
        dispatcher: Any = decorate(function)
        if cached:
            _compile_what_cannot_be_loaded(dispatcher._cache)
    finally:
        config.CACHE_DIR, numba_caching._CacheLocator.ensure_cache_path = before, ensure_writable
    call_template = dispatcher.get_call_template
    dispatcher.get_call_template = lambda args, keywords: call_template([_widened(each) for each in args], keywords)
    return dispatcher


def _do_nothing(_locator: object) -> None:
    pass


def _compile_what_cannot_be_loaded(kept: Any) -> None:
    """Make numba recompile kernels whose cache file is corrupt, and continue if it cannot write cache files."""
    load, save = kept.load_overload, kept.save_overload

    def load_or_compile(signature: Any, target: Any) -> Any:
        try:
            return load(signature, target)
        except Exception as error:  # unpickling may raise anything
            log.warning("recompiling a corrupt kernel in %s: %r", kept.cache_path, error)
            try:
                kept.flush()
            except OSError as refused:
                _warn_not_kept(kept.cache_path, str(refused))
            return None

    def save_if_possible(signature: Any, compiled: Any) -> None:
        try:
            save(signature, compiled)
        except Exception as error:  # no space, read-only file system, corrupt index
            _warn_not_kept(kept.cache_path, str(error))

    kept.load_overload, kept.save_overload = load_or_compile, save_if_possible


@cache
def _warn_not_kept(folder: str, reason: str) -> None:
    log.warning("cannot store kernels in %s, the next start recompiles them: %s", folder, reason)


def _widened(argument: Any) -> Any:
    """Widen the type of an argument that one kernel passes to another: all signed integers become int64.

    Otherwise, numba would compile the callee once each for int64, int32, int8 and every constant, which doubles the
    compile time.
    """
    argument = types.unliteral(argument)
    return types.int64 if isinstance(argument, types.Integer) and argument.signed else argument


def as_kernel_input(array: NDArray[Element]) -> NDArray[Element]:
    """Return the array, or a copy if it is read-only, strided or unaligned.

    Numba compiles a kernel once per layout of its arguments. Arrays from messages are read-only: without a copy, the
    server would block while numba compiles the kernel for them.
    """
    return array if array.flags.carray else np.array(array, order="C")


def aligned_empty(shape: int | tuple[int, ...], dtype: type[Element]) -> NDArray[Element]:
    """Return an uninitialized array aligned to a cache line."""
    length, item_bytes = int(np.prod(shape)), np.dtype(dtype).itemsize
    memory = np.empty(length + CACHE_LINE_BYTES // item_bytes, dtype=dtype)
    skip = (-memory.ctypes.data % CACHE_LINE_BYTES) // item_bytes
    return memory[skip : skip + length].reshape(shape)


def aligned_full(length: int, value: float) -> NDArray[np.float64]:
    """Return float64[length] filled with ``value``, aligned to a cache line."""
    aligned = aligned_empty(length, np.float64)
    aligned[:] = value
    return aligned
