"""Prefetches memory that a kernel will need soon.

With ten million rows, most loads miss all caches. Such a load takes as long as a hundred additions, and the next load
has to wait. If the addresses for a whole batch are known in advance, a kernel can request all of them before it
processes the first row. There are two ways to do this:

* `prefetch`: the processor's instruction. Nothing waits for its result, so it is nearly free between other work. With
  too many requests in flight, the processor drops further ones.
* `touch`: a load whose result is unused. It is never dropped. Nothing depends on its result, so hundreds of such loads
  overlap in a loop that does nothing else. Mixed with other work, it delays that work.

So kernels use `prefetch` for what they need a few rows later, and `touch` if a whole batch must be loaded first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba.core import cgutils as numba_cgutils
from numba.core import types as numba_types
from numba.extending import intrinsic
from numpy.typing import NDArray

types: Any = numba_types
cgutils: Any = numba_cgutils

_TO_READ = 0
_KEEP_IN_ALL_CACHES = 3
_DATA = 1
"""Arguments of LLVM's ``llvm.prefetch``: read or write, temporal locality, and type of cache."""


def _on_entry(emit: Callable[[Any, Any], object]) -> Callable[[NDArray[Any], int], None]:
    """Create a kernel function that operates on the address of one entry of a dense array."""

    def typed(typing_context: Any, array: Any, at: Any) -> Any:
        """Give numba the function's signature and its LLVM code."""
        if not isinstance(array, types.Array) or array.layout != "C":
            return None

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            emit(builder, builder.bitcast(builder.gep(data, [arguments[1]]), cgutils.voidptr_t))
            return context.get_dummy_value()

        return types.void(array, types.intp), generate

    return cast(Callable[[NDArray[Any], int], None], intrinsic(typed))


def _prefetch(builder: Any, address: Any) -> None:
    flag = ir.IntType(32)
    takes = [cgutils.voidptr_t, flag, flag, flag]
    function = builder.module.declare_intrinsic(
        "llvm.prefetch", [cgutils.voidptr_t], ir.FunctionType(ir.VoidType(), takes)
    )
    builder.call(function, [address, flag(_TO_READ), flag(_KEEP_IN_ALL_CACHES), flag(_DATA)])


def _touch(builder: Any, address: Any) -> None:
    builder.load_atomic(address, "monotonic", 1)  # an ordinary load on x86-64, but LLVM must not remove it


prefetch = _on_entry(_prefetch)
"""``prefetch(array, at)`` requests the cache line of one entry of an array. Only kernels can call it.

* ``array``: C-contiguous, with any dtype and number of dimensions.
* ``at``: index into the flattened array. An index out of bounds is harmless.
"""
touch = _on_entry(_touch)
"""``touch(array, at)`` loads one entry of an array and discards it. Unlike for `prefetch`, ``at`` must be in bounds."""
