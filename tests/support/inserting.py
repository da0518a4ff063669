"""Inserts more rows than a table accepts at once, without a server."""

from __future__ import annotations

from dataclasses import replace

from replay_server.table.table import NewRows, Table


def insert_all(table: Table, rows: NewRows) -> range:
    """Insert rows in as many inserts as needed; return their keys."""
    first, most = table.inserted, table.config.rows_at_once
    for start in range(0, rows.count, most):
        part = slice(start, min(start + most, rows.count))
        table.insert(
            replace(
                rows,
                columns={name: values[part] for name, values in rows.columns.items()},
                count=part.stop - part.start,
                priorities=None if rows.priorities is None else rows.priorities[part],
            ),
            None,
        )
    return range(first, table.inserted)
