"""The rows of a table in the parts of a checkpoint, as mapped files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from replay_proto.layout import column_file

from replay_server.checkpoint.manifest import DamagedCheckpointError
from replay_server.checkpoint.writing import PRIORITIES_FILE
from replay_server.resharding.parts import OldTable
from replay_server.storage.power_loss.recovery import PRIORITY_BYTES

_PIECE_BYTES = 16 << 20


class OldRows:
    """The rows of a table; rows are only read when they are needed."""

    def __init__(self, table: OldTable) -> None:
        """Map all files with rows.

        Raises:
            DamagedCheckpointError: a file does not have the rows that the manifest says.
        """
        config = table.shards[0].manifest.config
        columns = [*config.schema.columns.values(), config.link]
        widths = {column_file(index): column.row_bytes for index, column in enumerate(columns)}
        self._links_file = column_file(len(columns) - 1)
        self._files = {
            file: [_mapped(shard.folder / file, shard.manifest.size, width) for shard in table.shards]
            for file, width in {**widths, PRIORITIES_FILE: PRIORITY_BYTES}.items()
        }
        self.name = table.name
        self.folders: Sequence[Path] = [shard.folder for shard in table.shards]
        """The table's folder in each part."""
        self.sizes: Sequence[int] = [shard.manifest.size for shard in table.shards]
        """Number of rows in each part."""
        self.at_once = max(1, _PIECE_BYTES // sum(widths.values()))
        """Number of rows to read at once."""
        self.of_steps = config.steps is not None
        """Whether it is a table of steps."""

    @property
    def files(self) -> Sequence[str]:
        """Names of the files with rows: the columns, the links, and the priorities."""
        return list(self._files)

    def read(self, file: str, shards: NDArray[np.intp], rows: NDArray[np.intp]) -> NDArray[np.uint8]:
        """Copy rows of one of `files`: uint8[n, bytes of a row].

        Args:
            file: name of the file.
            shards: int64[n]: the old shard of each row.
            rows: int64[n]: the number of each row in its shard, from the oldest one on.
        """
        parts = self._files[file]
        values = np.empty((len(rows), parts[0].shape[1]), np.uint8)
        for shard, part in enumerate(parts):
            own = np.flatnonzero(shards == shard)
            values[own] = part[rows[own]]
        return values

    def links(self, shards: NDArray[np.intp], rows: NDArray[np.intp]) -> NDArray[np.uint64]:
        """Copy the links of rows, uint64[n, words]; see `Runs.links`, and `read` for the arguments."""
        return self.read(self._links_file, shards, rows).view("<u8")


def _mapped(path: Path, rows: int, row_bytes: int) -> NDArray[np.uint8]:
    """Map a file as uint8[rows, row_bytes]."""
    try:
        size = path.stat().st_size
        if size != rows * row_bytes:
            raise DamagedCheckpointError(path, f"expected {rows} rows of {row_bytes} bytes, found {size} bytes")
        if not rows:  # an empty file cannot be mapped
            return np.empty((0, row_bytes), np.uint8)
        return np.memmap(path, np.uint8, "r", shape=(rows, row_bytes))
    except OSError as error:
        raise DamagedCheckpointError(path, error.strerror or str(error)) from error
