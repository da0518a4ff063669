"""Columns to copy rows into: cache-line aligned, in reused memory.

columns = buffers.blank(256)                # {"obs": float32[256, 4], "action": int64[256]}
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from replay_proto.schema import Schema

from replay_client._rows.buffers import Buffers

_LINE_BYTES: Final = 64


class ColumnBuffers:
    """A pool of columns of one schema. Threads may share one."""

    def __init__(self, schema: Schema) -> None:
        """Start empty."""
        self._schema = schema
        self._buffers = Buffers()
        self._layout: _Layout | None = None  # of the previous columns

    def blank(self, row_count: int) -> dict[str, NDArray[Any]]:
        """Uninitialized columns ``dtype[row_count, *shape]`` by name, all in one buffer."""
        layout = self._layout
        if layout is None or layout.row_count != row_count:
            layout = self._layout = _Layout.of(self._schema, row_count)
        record: NDArray[Any] = np.ndarray((), layout.dtype, self._buffers.lend(layout.dtype.itemsize))
        return {name: record[name] for name in self._schema}


@dataclass(frozen=True)
class _Layout:
    """The layout of columns in a buffer: fields of one record, which NumPy can view quickly."""

    row_count: int
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, schema: Schema, row_count: int) -> _Layout:
        """Lay out columns so that each begins on a separate cache line."""
        sizes = [_whole_lines(column.row_bytes * row_count) for column in schema.values()]
        fields = {
            "names": list(schema),
            "formats": [(column.dtype, (row_count, *column.shape)) for column in schema.values()],
            "offsets": [0, *accumulate(sizes)][:-1],
            "itemsize": sum(sizes),
        }
        return cls(row_count, np.dtype(cast(Any, fields)))


def _whole_lines(size: int) -> int:
    return -(-size // _LINE_BYTES) * _LINE_BYTES
