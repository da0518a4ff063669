"""Figures as plain lists and dicts, for JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from replay_client.description import TableDescription
from replay_client.stats import Stats


def plain_description(description: TableDescription) -> dict[str, Any]:
    """A table's description."""
    return {
        "name": description.name,
        "uid": description.uid.hex(),
        "columns": {name: str(column) for name, column in description.schema.items()},
        "capacity": description.capacity,
        "backend": description.backend,
        "parameters": dict(description.parameters),
        "seed": description.seed,
        "rate_limit": None if description.rate_limit is None else plain(description.rate_limit),
        "size": description.size,
        "inserted": description.inserted,
        "slots": description.slots,
        "row_bytes": description.row_bytes,
    }


def plain_stats(stats: Stats) -> dict[str, Any]:
    """The figures of a server and its tables."""
    tables = {
        name: {
            **plain_description(table.table),
            **{
                field.name: plain(getattr(table, field.name))
                for field in dataclasses.fields(table)
                if field.name != "table"
            },
        }
        for name, table in stats.tables.items()
    }
    return {"server": plain(stats.server), "tables": tables}


def plain(value: Any) -> Any:
    """A dataclass, and all in it, as dicts and lists."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no word for it
    return value
