"""Converts statistics to plain lists and dicts, for JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from replay_client.cli.formats import value_text
from replay_client.cli.inspect_view import Inspected
from replay_client.results.description import TableDescription
from replay_client.results.stats import Stats, TableStats

_UNSHOWN = ("schema", "steps", "directory", "socket", "whole_capacity", "whole_uid", "whole_shards")


def plain_description(description: TableDescription) -> dict[str, Any]:
    """Convert a table's description."""
    columns = {name: str(column) for name, column in description.schema.items()}
    plain_one = {**plain_fields(description, *_UNSHOWN), "columns": columns}
    return plain_one if description.steps is None else {**plain_one, **description.steps.to_json()}


def plain_stats(stats: Stats) -> dict[str, Any]:
    """Convert the statistics of a server and its tables."""
    tables = {name: _plain_table(table) for name, table in stats.tables.items()}
    one = {"server": plain(stats.server), "tables": tables}
    if stats.shards is None:
        return one
    return {**one, "servers": plain(stats.servers), "shards_away": list(stats.shards_away)}


def _plain_table(table: TableStats) -> dict[str, Any]:
    left_out = ("table", "shards", "reports", *(() if table.shards else ("shards_away", "mass_away")))
    whole = {**plain_description(table.table), **plain_fields(table, *left_out)}
    if not table.shards:
        return whole
    return {**whole, "shards": {str(shard_id): _plain_table(part) for shard_id, part in table.shards.items()}}


def plain_inspection(seen: Inspected) -> dict[str, Any]:
    """Convert what `replay inspect` shows."""
    inspection, rows, found = seen.inspection, seen.rows, seen.distributions()
    live = {int(key): place for place, key in enumerate(rows.row_keys)}
    names = ("key", "priority", "probability", "age_s", "times_sampled")
    largest = [
        dict(zip(names, row, strict=True)) for row in zip(*plain_fields(inspection.largest).values(), strict=True)
    ]
    for row in largest:
        place = live.get(row["key"])
        row["columns"] = (
            None if place is None else {name: value_text(values[place]) for name, values in rows.columns.items()}
        )
    return {
        **plain_fields(inspection, "table", "largest"),
        "table": plain_description(inspection.table),
        "weights": plain(inspection.weights(found.beta)),
        "beta": found.beta,
        "exponent_by_rank": None if found.by_rank is None else found.by_rank.exponent,
        "exponent_by_priority": None if found.by_priority is None else found.by_priority.exponent,
        "largest": largest,
    }


def plain_fields(value: Any, *left_out: str) -> dict[str, Any]:
    """Convert the fields of a dataclass to a dict, leaving out those named in ``left_out``."""
    return {
        field.name: plain(getattr(value, field.name))
        for field in dataclasses.fields(value)
        if field.name not in left_out
    }


def plain(value: Any) -> Any:
    """Convert a dataclass and its content to dicts and lists."""
    if dataclasses.is_dataclass(value):
        return plain_fields(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no NaN or infinity
    return value
