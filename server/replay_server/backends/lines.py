"""Comparing and adding up the eight numbers of a cache line at once, where a loop would take them one by one.

Numba leaves loops over eight numbers to the processor's scalar unit. These write what they do in LLVM's vectors, which
become whatever the processor has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types as numba_types
from numba.core import cgutils as numba_cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from replay_server.backends.compile import CACHE_LINE_BYTES

types: Any = numba_types
cgutils: Any = numba_cgutils

LINE = CACHE_LINE_BYTES // 8
"""Numbers of eight bytes in a cache line."""

_INT64 = ir.IntType(64)
_INT32 = ir.IntType(32)


def address_of(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    """Return the address of one entry of an array, counted through all dimensions."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [at])


def is_dense(array: Any) -> bool:
    """Whether numba knows the rows of an array to follow each other in memory."""
    return isinstance(array, types.Array) and array.layout == "C"


def _load(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    """Load eight numbers of an array."""
    line = ir.VectorType(context.get_data_type(array_type.dtype), LINE)
    address = builder.bitcast(address_of(context, builder, array_type, array, at), line.as_pointer())
    return builder.load(address, align=8)


def _spread(builder: Any, number: Any) -> Any:
    """Return eight copies of a number."""
    blank = ir.Constant(ir.VectorType(number.type, LINE), ir.Undefined)
    one = builder.insert_element(blank, number, _INT32(0))
    return builder.shuffle_vector(one, blank, ir.Constant(ir.VectorType(_INT32, LINE), [_INT32(0)] * LINE))


def _count(builder: Any, lanes: Any) -> Any:
    """Return how many of eight bits are set."""
    return builder.zext(builder.ctpop(builder.bitcast(lanes, ir.IntType(LINE))), _INT64)


def _count_above(typing_context: Any, array: Any, at: Any, number: Any) -> Any:
    if not (is_dense(array) and array.dtype == types.float64):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        line = _load(context, builder, signature.args[0], arguments[0], arguments[1])
        return _count(builder, builder.fcmp_ordered(">", line, _spread(builder, arguments[2])))

    return types.int64(array, types.intp, types.float64), generate


count_above = cast(Callable[[NDArray[np.float64], int, float], int], intrinsic(_count_above))
"""Count how many of eight entries are above a number; to be called by kernels. ``count_above(array, at, number)``:

* ``array``: float64 of any number of dimensions, each row following the one before it in memory.
* ``at``: which entry is the first of the eight, counted through all dimensions.
"""


def _step_over(typing_context: Any, array: Any, at: Any, most: Any) -> Any:
    if not (is_dense(array) and array.dtype == types.int32):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        line = _load(context, builder, signature.args[0], arguments[0], arguments[1])
        most = builder.trunc(arguments[2], _INT32)
        zeros = ir.Constant(line.type, None)
        sums = line
        for step in (1, 2, 4):
            lanes = [_INT32(LINE + lane - step if lane >= step else 0) for lane in range(LINE)]
            moved = builder.shuffle_vector(zeros, sums, ir.Constant(ir.VectorType(_INT32, LINE), lanes))
            sums = builder.add(sums, moved)
        within = builder.icmp_signed("<=", sums, _spread(builder, most))
        add_up = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_INT32, [line.type]), f"llvm.vector.reduce.add.v{LINE}i32"
        )
        passed = builder.sext(builder.call(add_up, [builder.select(within, line, zeros)]), _INT64)
        return context.make_tuple(builder, signature.return_type, [_count(builder, within), passed])

    return types.UniTuple(types.int64, 2)(array, types.intp, types.int64), generate


step_over = cast(Callable[[NDArray[np.int32], int, int], tuple[int, int]], intrinsic(_step_over))
"""Step over entries that add up to at most a number; to be called by kernels. ``step_over(array, at, most)``:

* ``array``: int32 of any number of dimensions, each row following the one before it in memory; none below 0, and no
  eight of them that add up to more than an int32 holds.
* ``at``: which entry is the first of eight, counted through all dimensions.
* ``most``: from 0 to the largest int32.

Returns how many of the eight entries can be added up, one after the other, without passing ``most``, and their sum.
"""
