"""Inserts rows that were read from a table or from a file, with their episodes and priorities.

    loader = target.loader()
    for rows in source.rows():
        loader.insert(rows)

The rows are inserted in the given order. In a table of steps, they keep their episodes and steps, so the same windows
can be drawn from the copy. Streams get new random numbers, because the table may already contain the original ones. If
rows of an episode are missing, the rows after the gap belong to another stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from replay_proto.framing import Array
from replay_proto.rate_limit import RateLimit
from replay_proto.schema import Schema
from replay_proto.v1 import replay_pb2

from replay_client._rows.checks import checked_priorities, checked_rows
from replay_client._writing.links import Links, StepLinks, links_of_rows
from replay_client.batch import Rows
from replay_client.draws import checked_capacity
from replay_client.errors import InvalidArgumentError, ReplayError
from replay_client.results.description import FIFO, TableDescription

Insert = Callable[
    [Mapping[str, Array], NDArray[np.float64] | None, replay_pb2.Runs],
    NDArray[np.int64],
]
"""Inserts checked rows with their priorities and runs, in one request; returns their keys."""
MAX_RUNS: Final = 1024
"""Maximum runs per request, as in a writer's blocks: the server spends a few microseconds on each."""
MAX_STEP: Final = (1 << 48) - 1
"""Largest number of a step within its episode."""
_FIRST_PRIORITY: Final = 1.0
"""Priority of anchors while no row's priority is known."""


class RowLoader:
    """See the module. For use in one thread."""

    def __init__(
        self, table: TableDescription, insert: Insert, *, priorities: bool, keep_streams: bool = False
    ) -> None:
        """Created by `Table.loader`; ``keep_streams`` is as for `StepLinks`."""
        self.inserted = 0
        """Number of rows inserted so far."""
        self.first_key: int | None = None
        """Key of the first inserted row; None: no row was inserted yet."""
        self.next_key = 0
        """Key after that of the last inserted row; 0: no row was inserted yet."""
        self.is_contiguous = True
        """Whether the inserted rows have consecutive keys, because nothing else was inserted in between."""
        self._table = table
        self._insert = insert
        self._has_priorities = priorities
        self._links = None if table.steps is None else StepLinks(table.steps.window, keep_streams=keep_streams)
        self._largest = 0.0

    def insert(self, rows: Rows) -> None:
        """Insert rows exactly once, even if the server goes away during the call. Large inserts are split.

        Args:
            rows: rows with the columns of the table, in order of their keys or episode by episode.

        Raises:
            InvalidArgumentError: as for `check_loadable`. None of these rows was inserted.
            ReplayError: as for `Table.insert`. A note on the error says how many rows were inserted. This loader is
                then unusable.
        """
        columns = check_loadable(
            self._table.schema,
            rows,
            of_steps=self._links is not None,
            priorities=self._has_priorities,
            may_lack=self._table.may_lack_priorities,
        )
        links = links_of_rows(rows) if self._links is None else self._links.of(rows)
        priorities = self._known(links.priorities) if self._has_priorities else None
        first = 0
        while first < rows.batch_size:
            end = links.part_end(first, self._table.rows_per_insert, MAX_RUNS)
            self._insert_part(links, columns, priorities, first, end)
            first = end

    def _insert_part(
        self,
        links: Links,
        columns: Mapping[str, Array],
        priorities: NDArray[np.float64] | None,
        first: int,
        end: int,
    ) -> None:
        given = None if priorities is None else priorities[links.places[first] : links.places[end]]
        values = {name: column[first:end] for name, column in columns.items()}
        try:
            keys = self._insert(values, given, links.runs(first, end))
        except ReplayError as error:
            error.add_note(f"{self.inserted:,} rows were inserted before this error")
            raise
        if self.first_key is None:
            self.first_key = int(keys[0])
        self.is_contiguous &= int(keys[0]) == self.first_key + self.inserted
        self.inserted += len(keys)
        self.next_key = int(keys[-1]) + 1

    def _known(self, priorities: NDArray[np.float64]) -> NDArray[np.float64]:
        """Replace unknown priorities (NaN) by the largest one known so far, as new rows get the largest priority."""
        is_known = ~np.isnan(priorities)
        self._largest = max(self._largest, float(priorities[is_known].max(initial=0.0)))
        return np.where(is_known, priorities, self._largest or _FIRST_PRIORITY)


def check_loadable(
    schema: Schema, rows: Rows, *, of_steps: bool, priorities: bool, may_lack: bool = False
) -> dict[str, Array]:
    """Check that rows can be loaded into a table. Return arrays in the order of the schema, before casts to its dtypes.

    With ``priorities``, these are loaded, too; ``may_lack`` says whether rows may lack one, because rows of this table
    may; see `_known`.

    Raises:
        InvalidArgumentError: these are no `Rows`; the columns or their dtypes or shapes differ from the table's; the
            rows have steps and the table has none, or the other way round; or a step's number or a priority is invalid.
    """
    _check_kind(rows)
    if of_steps is not (rows.steps is not None):
        expected, got = ("rows with steps", "none") if of_steps else ("rows without steps", "rows with steps")
        raise InvalidArgumentError.of_field("steps", f"{expected}, as in the table", got)
    columns, row_count = checked_rows(schema, rows.columns)
    if rows.steps is not None and not (rows.steps.min() >= 0 and rows.steps.max() <= MAX_STEP):
        raise InvalidArgumentError.of_field("steps", f"0 to {MAX_STEP}", f"{rows.steps.min()} to {rows.steps.max()}")
    if priorities:
        checked_priorities(np.where(np.isnan(rows.priorities) & may_lack, 0.0, rows.priorities), row_count)
    return columns


def _check_kind(rows: object) -> None:
    if not isinstance(rows, Rows):
        expected = "Rows, as Table.rows and Table.read return them; for a mapping of columns, use Table.insert"
        raise InvalidArgumentError.of_field("rows", expected, f"a {type(rows).__name__}")


def check_room(rows: int, config: Mapping[str, Any]) -> None:
    """Check that a new table accepts this many rows before the first draw; the error names what limits them.

    ``config`` has arguments of `ReplayClient.create_table`.
    """
    capacity = checked_capacity(config["capacity"])
    if config["backend"] == FIFO and rows > capacity:
        raise InvalidArgumentError.of_field("capacity", f"at least {rows}, to queue all rows", str(capacity))
    limit = RateLimit.of(config["min_size"], config["samples_per_insert"], config["error_buffer"])
    ratio = None if limit is None else limit.samples_per_insert
    if limit is not None and ratio is not None and rows * ratio > limit.max_diff:
        expected = f"None, or an error_buffer that allows {rows} rows before the first draw"
        raise InvalidArgumentError.of_field("samples_per_insert", expected, f"{ratio:g}")
