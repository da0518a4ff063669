"""Copies rows directly from the server's files if client and server share a host.

    mapped = MappedRows(description)
    is_whole = mapped.gather(batch_keys, columns)       # False if inserts overwrote a row meanwhile

The files must be those of the server that answers: `replay_client._transport.data_path` proves this first. Each request
then carries the id of that server, so another one answers with rows. The client receives only keys and weights, and
copies the rows itself. Later inserts may overwrite rows at any time, so the client checks after the copy that the rows
are intact. This check relies on x86-64's ordered loads.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from replay_proto.framing import Array
from replay_proto.layout import (
    HEADER_FILE,
    HEADER_WORDS,
    VERSION_BYTES,
    VERSIONS_FILE,
    WRITE_HORIZON,
    column_file,
)
from replay_proto.v1 import replay_pb2

from replay_client._rows.copying import CurrentValues, RowSource, bytes_of, in_long_rows
from replay_client.results.description import TableDescription

_MOST_COPIES: Final = 8
"""Maximum copies of rows that are updated again and again. Then, the server sends them."""


class MappedRows:
    """The rows of one table, mapped read-only."""

    def __init__(self, table: TableDescription) -> None:
        """Map the files, or raise OSError."""
        folder = Path(table.directory)
        self.request = replay_pb2.SameHost(owner_id=table.owner_id)
        """Tells the server to omit rows from the reply."""
        self.request_again = replay_pb2.SameHost(owner_id=table.owner_id, overtaken=True)
        """Tells the server to include the rows, because they were overwritten during the copy of an earlier reply."""
        self.is_refused = False
        """Whether a reply had rows although its request named the server: another server has answered."""
        self._slots = table.slots
        self._header = _mapped(folder / HEADER_FILE, 8 * HEADER_WORDS).view("<i8")
        self._versions: NDArray[np.int64] | None = None
        if table.schema.mutable:
            self._versions = _mapped(folder / VERSIONS_FILE, table.slots * VERSION_BYTES).view("<i8")
        self._columns: dict[str, RowSource] = {}
        for index, (name, column) in enumerate(table.schema.items()):
            places = table.slots * (2 if column.mutable else 1)
            path = folder / column_file(index, is_mutable=column.mutable)
            data = _mapped(path, places * column.row_bytes)
            values = in_long_rows(data.view(column.dtype).reshape(places, *column.shape))
            if column.mutable and self._versions is not None:
                self._columns[name] = CurrentValues(values, self._versions)
            else:
                self._columns[name] = values

    def gather(self, keys: NDArray[np.int64], columns: Mapping[str, Array]) -> bool:
        """Copy rows to arrays by column, ``dtype[n, *shape]``. Return False if inserts overwrote a row during the copy.

        ``keys``, int64[n], are of rows that were live when the server replied.
        """
        slots = self.slots_of(keys)

        def copy() -> None:
            for name, values in columns.items():
                # With any mode but "raise", take() writes directly to its output; all slots are in range.
                self._columns[name].take(slots, axis=0, out=in_long_rows(values), mode="clip")

        return self.copied(keys, copy)

    def copied(self, keys: NDArray[np.int64], copy: Callable[[], None]) -> bool:
        """Copy these rows by calling ``copy``, and again if some of them were updated meanwhile.

        Return False if inserts overwrote a row during the copy, or rows were updated during each of several copies.
        """
        if self._versions is None:
            copy()
            return self.are_whole(keys)
        slots = self.slots_of(keys)
        for _ in range(_MOST_COPIES):
            seen = self._versions.take(slots)
            copy()
            if not self.are_whole(keys):
                return False
            if np.array_equal(seen, self._versions.take(slots)):
                return True
        return False

    def slots_of(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slot of the row with each key, int64[n]."""
        return keys % self._slots

    @cached_property
    def as_bytes(self) -> Mapping[str, RowSource]:
        """The mapped columns with all slots, as bytes: uint8[slots, row_bytes] by name."""
        return {name: bytes_of(column) for name, column in self._columns.items()}

    def are_whole(self, keys: NDArray[np.int64]) -> bool:
        """Whether no insert has overwritten any of these rows yet. If so, copies made before this call are intact."""
        return not len(keys) or int(np.minimum.reduce(keys)) + self._slots >= int(self._header[WRITE_HORIZON])


@dataclass
class NearRows:
    """The rows of a table that a client may copy. A `DataPath` keeps this up to date; requests use it as it is."""

    mapped: MappedRows | None = None
    """None: replies contain the rows. Copy the rows of a reply only from what its request was made with."""
    is_doubted: bool = False
    """Whether the server may have been replaced, or nothing was proved yet."""

    @property
    def is_refused(self) -> bool:
        """Whether another server has answered."""
        return self.mapped is not None and self.mapped.is_refused


def _mapped(path: Path, size: int) -> NDArray[np.uint8]:
    """Map a file as a read-only uint8[size]."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return np.frombuffer(mmap.mmap(descriptor, size, prot=mmap.PROT_READ), np.uint8)
    except ValueError as error:  # raised by mmap if the file is shorter
        raise OSError(f"{path} is not of {size} bytes") from error
    finally:
        os.close(descriptor)
