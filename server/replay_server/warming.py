"""Runs every hot path once before the port opens, so that no caller waits for a compilation."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from replay_proto.schema import Column, Schema

from replay_server import backends
from replay_server.draws import Draw
from replay_server.storage.table_directory import TableDirectory
from replay_server.table import NewRows, Table
from replay_server.table_config import TableConfig
from replay_server.updates import first_unusable

_ROWS = 4


def warm_up(parent: Path) -> None:
    """Use a small table of each backend below ``parent``, and leave nothing behind.

    Raises:
        OSError: if no table can be made there.
    """
    backends.warm_up()
    with tempfile.TemporaryDirectory(dir=parent, prefix=".warm-up-") as folder:
        for backend in backends.BACKENDS:
            _use(Table(TableDirectory.create(Path(folder), _config(backend))))


def _config(backend: str) -> TableConfig:
    return TableConfig(backend, Schema({"value": Column("float32")}), capacity=_ROWS, backend=backend)


def _use(table: Table) -> None:
    rows = NewRows({"value": np.zeros(_ROWS, np.float32)}, _ROWS)
    # Twice, so that rows are evicted as well.
    for _ in range(2):
        table.insert(rows, None)
    batch = table.draw(Draw(_ROWS, beta=0.5))
    table.update(batch.keys, np.ones(_ROWS))
    first_unusable(np.ones(_ROWS), table.priority_limit)
    # Arrays of a message are read-only, for which kernels are compiled on their own unless they are copied.
    table.update(np.frombuffer(batch.keys.tobytes(), np.int64), np.frombuffer(np.ones(_ROWS).tobytes(), np.float64))
    table.reset()
    table.close()
