"""How the inner loops are compiled: typed decorators around `numba.njit`. `kernel_cache` says where they are kept."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core import types as numba_types
from numpy.typing import NDArray

from replay_server.kernels import kernel_cache

log = logging.getLogger(__name__)

Kernel = TypeVar("Kernel", bound=Callable[..., object])
Element = TypeVar("Element", bound=np.generic)

CACHE_LINE_BYTES = 64

KERNELS: list[Any] = []
"""Every kernel, as numba's dispatchers: what `replay_server.process.warming` compiles."""

types: Any = numba_types


def kernel(function: Kernel) -> Kernel:
    """Compile a function of arrays and numbers to machine code on its first call, or load it from the cache."""
    return cast(Kernel, _compiled(function))


def part_of_kernel(function: Kernel) -> Kernel:
    """Compile a function that kernels call for one row after the other into each of them.

    In a call proper numba counts the references to each array it is given, which takes longer than looking at a row.
    Such a function has no branch in it that calls another one with its arrays: across branches it would count as well.
    """
    return cast(Kernel, _compiled(function, forceinline=True))


def _compiled(function: Callable[..., object], *, forceinline: bool = False) -> Any:
    # A function of a file that the digest does not cover, a test's say, is compiled anew by every process.
    is_covered = Path(function.__code__.co_filename) in kernel_cache.sources()
    dispatcher = _dispatcher(function, cached=is_covered, forceinline=forceinline)
    if is_covered:
        # Numba falls back on other folders, which all versions share, if it cannot write to the one that it was given.
        if not Path(dispatcher.stats.cache_path).is_relative_to(kernel_cache.folder()):
            return _dispatcher(function, cached=False, forceinline=forceinline)
        KERNELS.append(dispatcher)
    return dispatcher


def _dispatcher(function: Callable[..., object], *, cached: bool, forceinline: bool) -> Any:
    config: Any = numba.config
    before = config.CACHE_DIR
    # Numba asks for its folder here and now; whatever else in this process uses numba keeps its own.
    config.CACHE_DIR = str(kernel_cache.folder()) if cached else before
    try:
        decorate = numba.njit(nogil=True, cache=cached, error_model="numpy", forceinline=forceinline)
        dispatcher: Any = decorate(function)
        if cached:
            _compile_what_cannot_be_loaded(dispatcher._cache)
    finally:
        config.CACHE_DIR = before
    call_template = dispatcher.get_call_template
    dispatcher.get_call_template = lambda args, keywords: call_template([_widened(each) for each in args], keywords)
    return dispatcher


def _compile_what_cannot_be_loaded(kept: Any) -> None:
    """Have numba compile a kernel whose file is damaged, and go on where it cannot be written."""
    load, save = kept.load_overload, kept.save_overload

    def load_or_compile(signature: Any, target: Any) -> Any:
        try:
            return load(signature, target)
        except Exception as error:  # whatever unpickling raises
            log.warning("recompiling a corrupt kernel in %s: %r", kept.cache_path, error)
            try:
                kept.flush()
            except OSError as refused:
                _warn_not_kept(kept.cache_path, str(refused))
            return None

    def save_if_possible(signature: Any, compiled: Any) -> None:
        try:
            save(signature, compiled)
        except Exception as error:  # no room, a file system that became read-only, an index that is damaged
            _warn_not_kept(kept.cache_path, str(error))

    kept.load_overload, kept.save_overload = load_or_compile, save_if_possible


@cache
def _warn_not_kept(folder: str, reason: str) -> None:
    log.warning("cannot store kernels in %s, the next start recompiles them: %s", folder, reason)


def _widened(argument: Any) -> Any:
    """The type as which one kernel hands an argument to another: integers are int64, whatever they came from.

    Numba would compile the callee once for each of int64, int32, int8 and every constant: twice the time to compile.
    """
    argument = types.unliteral(argument)
    return types.int64 if isinstance(argument, types.Integer) and argument.signed else argument


def as_kernel_input(array: NDArray[Element]) -> NDArray[Element]:
    """Return the array, or a copy if it is read-only, strided or unaligned.

    A kernel is compiled once per layout of its arguments. Arrays that come straight from a message are read-only:
    without this, the first of them would stop the server for as long as a compilation takes.
    """
    return array if array.flags.carray else np.array(array, order="C")


def aligned_empty(shape: int | tuple[int, ...], dtype: type[Element]) -> NDArray[Element]:
    """Return an array, not yet written to, that begins at the beginning of a cache line."""
    length, item_bytes = int(np.prod(shape)), np.dtype(dtype).itemsize
    memory = np.empty(length + CACHE_LINE_BYTES // item_bytes, dtype=dtype)
    skip = (-memory.ctypes.data % CACHE_LINE_BYTES) // item_bytes
    return memory[skip : skip + length].reshape(shape)


def aligned_full(length: int, value: float) -> NDArray[np.float64]:
    """Return float64[length], filled with ``value``, that begins at the beginning of a cache line."""
    aligned = aligned_empty(length, np.float64)
    aligned[:] = value
    return aligned
