"""Rows copied straight out of the server's files, when client and server share a host.

    mapped = MappedRows(description, nonce)
    columns = mapped.gather(batch_keys)         # None if inserts overtook the copy

The server names the directory of a table; a client that can read the nonce there echoes it with its requests, gets
keys and weights only, and copies the rows itself. Rows are overwritten by later inserts without asking, so a copy
counts only if it is found to be whole afterwards. That relies on loads being done in order, as x86-64 does them.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from replay_proto.framing import Array, flat_rows
from replay_proto.layout import HEADER_FILE, HEADER_WORDS, WRITE_HORIZON, column_file
from replay_proto.schema import Schema
from replay_proto.v1 import replay_pb2

from replay_client._rows.buffers import Buffers
from replay_client.results.description import TableDescription

_LINE_BYTES: Final = 64


class MappedRows:
    """The rows of one table, mapped read-only."""

    def __init__(self, table: TableDescription, nonce: bytes) -> None:
        """Map the files.

        Args:
            table: the table.
            nonce: what the file in its directory holds.

        Raises:
            OSError: if one cannot be mapped.
        """
        folder = Path(table.directory)
        self.request = replay_pb2.SameHost(nonce=nonce)
        """What a request says so that rows are left out of its answer."""
        self.request_again = replay_pb2.SameHost(nonce=nonce, overtaken=True)
        """What a request says that replaces one whose rows were overwritten: its answer has the rows."""
        self._schema = table.schema
        self._slots = table.slots
        self._header = _mapped(folder / HEADER_FILE, 8 * HEADER_WORDS).view("<i8")
        self._columns: dict[str, Array] = {}
        for index, (name, column) in enumerate(table.schema.items()):
            data = _mapped(folder / column_file(index), table.slots * column.row_bytes)
            self._columns[name] = flat_rows(data.view(column.dtype).reshape(table.slots, *column.shape))
        self._buffers = Buffers()
        self._layout: _Layout | None = None  # of the batch before

    def gather(self, keys: NDArray[np.int64]) -> dict[str, NDArray[Any]] | None:
        """Copy rows.

        Args:
            keys: int64[n], of rows that were live when the server named them.

        Returns:
            By column, ``dtype[n, *shape]``, the caller's own; None if a row was overwritten meanwhile.
        """
        slots = keys % self._slots
        columns = self._blank_columns(len(keys))
        for name, values in columns.items():
            # Any mode but "raise" lets take() write straight to its output; the slots are in range.
            self._columns[name].take(slots, axis=0, out=flat_rows(values), mode="clip")
        if int(keys.min()) + self._slots < int(self._header[WRITE_HORIZON]):
            return None
        return columns

    def _blank_columns(self, row_count: int) -> dict[str, NDArray[Any]]:
        """Columns to be written, in one buffer."""
        layout = self._layout
        if layout is None or layout.row_count != row_count:
            layout = self._layout = _Layout.of(self._schema, row_count)
        record: NDArray[Any] = np.ndarray((), layout.dtype, self._buffers.take(layout.dtype.itemsize))
        return {name: record[name] for name in self._schema}


@dataclass(frozen=True)
class _Layout:
    """Where the columns of a batch lie in a buffer: as one record, of which numpy makes views in no time."""

    row_count: int
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, schema: Schema, row_count: int) -> _Layout:
        """Each column begins at a cache line of its own."""
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


def _mapped(path: Path, size: int) -> NDArray[np.uint8]:
    """uint8[size]: a file, read-only."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return np.frombuffer(mmap.mmap(descriptor, size, prot=mmap.PROT_READ), np.uint8)
    except ValueError as error:  # how mmap says that the file is shorter
        raise OSError(f"{path} is not of {size} bytes") from error
    finally:
        os.close(descriptor)
