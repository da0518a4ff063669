"""The rights that fields of requests require, besides the right that their RPC requires; see `replay.proto`.

Every field of every message in a request is listed, so that nobody adds one without deciding who may send it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from replay_proto.access.tokens import Right


class Needed(NamedTuple):
    """What a request that sets a field requires."""

    right: Right
    on: Literal["table", "series"] = "table"
    """On what: the table that the request names, or a table with the name of the checkpoint's series."""


def _no_more(names: str) -> dict[str, Needed | None]:
    """Fields that whoever may call the RPC, or may send the message that they are in, may also set."""
    return dict.fromkeys(names.split())


_WRITE: Final = Needed(Right.WRITE)
_SERIES: Final = Needed(Right.ADMIN, "series")

FIELDS: Final[Mapping[str, Mapping[str, Needed | None]]] = {
    "CreateTableRequest": _no_more("config shards_version"),
    "TableConfig": _no_more(
        "name columns capacity backend seed rate_limiter steps whole_capacity whole_uid whole_shards"
    ),
    "Column": _no_more("name stored derived step presence"),
    "StoredColumn": _no_more("data_type shape"),
    "StepColumn": _no_more("values unsampled at_start"),
    "Presence": _no_more("of"),
    "DerivedColumn": _no_more("stack n_step_return discount mask"),
    "Stack": _no_more("of count repeats ahead"),
    "Return": _no_more("of"),
    "Discount": {},
    "Mask": {},
    "Backend": _no_more("name parameters"),
    "ParametersEntry": _no_more("key value"),
    "RateLimiter": _no_more("min_size samples_per_insert min_diff max_diff"),
    "Steps": _no_more("gamma transitions sequences"),
    "Transitions": _no_more("n_step"),
    "Sequences": _no_more("length burn_in period"),
    "DropTableRequest": _no_more("table table_uid"),
    "ListTablesRequest": {},
    "DescribeTableRequest": _no_more("table"),
    "ResetTableRequest": _no_more("table table_uid"),
    "InsertRequest": _no_more("table table_uid writer_id insertion rows"),
    "WriteRequest": _no_more("table table_uid writer_id insertion rows"),
    "Insertion": _no_more("row_count priorities sequence runs wait_s"),
    "Runs": _no_more("row_counts streams episodes first_steps ends"),
    "SampleRequest": _no_more("table table_uid draw same_host"),
    "Draw": _no_more("batch_size beta weight_norm draw_mode wait_s columns charged_apart"),
    "ColumnNames": _no_more("names"),
    "SameHost": _no_more("owner_id overtaken"),
    "ReadRequest": _no_more("table table_uid keys columns"),
    "UpdatePrioritiesRequest": _no_more("table table_uid update"),
    "PriorityUpdate": {
        **_no_more("keys priorities"),
        "others_largest": _WRITE,  # the priority of rows that others insert
    },
    "LearnRequest": {
        **_no_more("table table_uid draw batches same_host ahead wants_state"),
        "update": _WRITE,
        "charge": _WRITE,  # when others may insert
        "refund": _WRITE,
    },
    "StatsRequest": {"table": Needed(Right.READ)},
    "CheckpointRequest": {
        **_no_more("shard_id"),
        "tables": Needed(Right.ADMIN),
        # Names a series, and says which of its checkpoints are removed, and which numbers are left.
        "series": _SERIES,
        "keep": _SERIES,
        "number": _SERIES,
    },
    "ListCheckpointsRequest": {},
    "VerifyCheckpointRequest": _no_more("name"),
    "GetShardsRequest": {},
    "SetShardsRequest": _no_more("map expected_version"),
    "ShardMap": _no_more("uid version shards id ancestors"),
    "Shard": _no_more("id address state lost_rows"),
    "LostRows": _no_more("table table_uids size inserted"),
    "ReportShardRequest": {
        **_no_more("table table_uid"),
        "report": _WRITE,  # statistics that others see
    },
    "ShardReport": _no_more("shard_id inserted size total_mass"),
    "InspectRequest": _no_more("table table_uid largest"),
}
"""By message and field; None: no more rights."""


def needing(message: str, right: Right) -> tuple[str, ...]:
    """Return the fields of a message that require this right."""
    return tuple(name for name, needed in FIELDS[message].items() if needed is not None and needed.right is right)
