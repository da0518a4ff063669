"""Composes batches from the rows of several tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Final

from replay_proto.schema import Column

from replay_client._operations.table import TableHandle
from replay_client._rows.buffers import Blank, ColumnBuffers, JoinedBuffers
from replay_client._rows.columns import chosen_columns
from replay_client.draws import checked_count
from replay_client.errors import InvalidArgumentError
from replay_client.results.description import FIFO


def checked_sizes(batch_sizes: Mapping[str, int]) -> dict[str, int]:
    """Check the number of rows from each table."""
    if not isinstance(batch_sizes, Mapping) or not batch_sizes:
        expected = "the number of rows from each table, such as {'online': 128, 'demo': 128}"
        raise InvalidArgumentError.of_field("batch_sizes", expected, repr(batch_sizes))
    return {str(name): checked_count(f"batch_sizes.{name}", count) for name, count in batch_sizes.items()}


class Mixture:
    """Describes how batches are composed from the rows of several tables."""

    def __init__(
        self, tables: Mapping[str, TableHandle], sizes: Mapping[str, int], columns: Collection[str] | None
    ) -> None:
        """Plan batches of ``sizes[name]`` rows from each table; see `ReplayClient.mixed_sampler`."""
        for name, table in tables.items():
            if table.steps is not None and table.steps.is_ragged:
                raise InvalidArgumentError.of_field("steps.padded", "True in mixed batches", f"False in table {name!r}")
        common = _common_columns({name: table.batch_columns for name, table in tables.items()}, tables, columns)
        self.names: Final = None if columns is None else tuple(common)
        """Names of the columns to draw; None: all."""
        self.buffers: Final = JoinedBuffers(ColumnBuffers(common), list(sizes.values()))
        """Memory for the batches."""
        self.queues: Final = {name for name, table in tables.items() if table.backend == FIFO}
        """Names of the tables whose rows have no probabilities."""
        self._places = {name: place for place, name in enumerate(tables)}

    def blank(self, name: str) -> Blank:
        """Return a function that provides the memory for a table's part of each batch."""
        return partial(self.buffers.blank, self._places[name])


def _common_columns(
    available: Mapping[str, Mapping[str, Column]], tables: Mapping[str, TableHandle], columns: Collection[str] | None
) -> dict[str, Column]:
    """Return the columns of batches, in the order of the first table. Each must be the same in all tables."""
    everywhere = {name: column for of_table in available.values() for name, column in of_table.items()}
    of_sequences = {name for table in tables.values() if table.steps is not None for name in table.steps.masks}
    masks = {name: mask for table in tables.values() for name, mask in table.schema.masks.items()}
    chosen = chosen_columns(everywhere, columns, masks)
    wanted = [name for name in everywhere if chosen is None or name in chosen or name in of_sequences]
    differing = {name: _differences(name, available) for name in wanted}
    if any(differing.values()):
        alike = [
            name
            for name in everywhere
            if not (_differences(name, available) or _differences(masks.get(name, name), available))
        ]
        expected = "columns that all tables have, with the same dtype and shape"
        expected += f": columns={alike}" if alike else ""
        raise InvalidArgumentError.of_field("columns", expected, "; ".join(filter(None, differing.values())))
    return {name: everywhere[name] for name in wanted}


def _differences(name: str, available: Mapping[str, Mapping[str, Column]]) -> str:
    """Describe how a column differs between tables; return an empty string if it does not."""
    found = {table: columns.get(name) for table, columns in available.items()}
    if len({column and (column.dtype, column.shape) for column in found.values()}) == 1:
        return ""
    of_tables = (f"{_shown(column)} in {table!r}" for table, column in found.items())
    return f"{name!r}: {', '.join(of_tables)}"


def _shown(column: Column | None) -> str:
    return "absent" if column is None else str(Column(column.dtype, column.shape))
