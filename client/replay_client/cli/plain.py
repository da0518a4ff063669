"""Statistics as plain lists and dicts, for JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from replay_client.batch import Rows
from replay_client.cli.distribution import Distributions
from replay_client.cli.row_text import value_text
from replay_client.results.description import TableDescription
from replay_client.results.stats import Stats


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


def plain_inspection(found: Distributions, rows: Rows) -> dict[str, Any]:
    """The results of `replay inspect`; ``rows`` have the largest priorities and are still live."""
    inspection = found.inspection
    live = {int(key): place for place, key in enumerate(rows.row_keys)}
    largest = [
        {
            "key": key,
            **{
                name: values[rank].item()
                for name, values in (
                    ("priority", inspection.largest.priorities),
                    ("probability", inspection.largest.probabilities),
                    ("age_s", inspection.largest.ages_s),
                    ("times_sampled", inspection.largest.times_sampled),
                )
            },
            "columns": {name: value_text(values[live[key]]) for name, values in rows.columns.items()}
            if key in live
            else None,
        }
        for rank, key in enumerate(inspection.largest.row_keys.tolist())
    ]
    return {
        "table": plain_description(inspection.table),
        "looked_at": inspection.looked_at,
        "total_mass": inspection.total_mass,
        "ranks": inspection.ranks.tolist(),
        "priorities": inspection.priorities.tolist(),
        "probabilities": inspection.probabilities.tolist(),
        "weights": inspection.weights(found.beta).tolist(),
        "beta": found.beta,
        "exponent_by_rank": None if found.by_rank is None else found.by_rank.exponent,
        "exponent_by_priority": None if found.by_priority is None else found.by_priority.exponent,
        "ages_s": inspection.ages_s.tolist(),
        "times_sampled": [plain(bar) for bar in inspection.times_sampled],
        "largest": largest,
    }


def plain(value: Any) -> Any:
    """Convert a dataclass and its content to dicts and lists."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no NaN or infinity
    return value
