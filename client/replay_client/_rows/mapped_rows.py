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
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from replay_proto.framing import Array, flat_rows
from replay_proto.layout import HEADER_FILE, HEADER_WORDS, WRITE_HORIZON, column_file
from replay_proto.v1 import replay_pb2

from replay_client._rows.copying import in_long_rows
from replay_client.results.description import TableDescription


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
        self._columns: dict[str, Array] = {}
        for index, (name, column) in enumerate(table.schema.items()):
            data = _mapped(folder / column_file(index), table.slots * column.row_bytes)
            self._columns[name] = in_long_rows(data.view(column.dtype).reshape(table.slots, *column.shape))

    def gather(self, keys: NDArray[np.int64], columns: Mapping[str, Array]) -> bool:
        """Copy rows.

        Args:
            keys: int64[n], keys of rows that were live when the server replied.
            columns: output arrays, by column ``dtype[n, *shape]``.

        Returns:
            False if inserts overwrote a row during the copy.
        """
        slots = self.slots_of(keys)
        for name, values in columns.items():
            # With any mode but "raise", take() writes directly to its output; all slots are in range.
            self._columns[name].take(slots, axis=0, out=in_long_rows(values), mode="clip")
        return self.are_whole(keys)

    def slots_of(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slot of the row with each key, int64[n]."""
        return keys % self._slots

    @cached_property
    def as_bytes(self) -> Mapping[str, NDArray[np.uint8]]:
        """The mapped columns with all slots, as bytes: uint8[slots, row_bytes] by name."""
        return {name: flat_rows(column).view(np.uint8) for name, column in self._columns.items()}

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
