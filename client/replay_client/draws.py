"""Validates the options of a draw and converts them to protobuf."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping
from typing import Final, Literal, TypedDict, TypeVar

import numpy as np
from replay_proto.v1 import replay_pb2

from replay_client.errors import InvalidArgumentError

V = TypeVar("V")

WeightNorm = Literal["batch", "table"]
"""Divide importance-sampling weights by the largest weight in the batch, or in the whole table."""
DrawMode = Literal["stratified", "independent", "without_replacement", "newest_first"]
"""One draw from each of `batch_size` equal segments of the mass (Schaul et al. 2016, 3.3); independent draws;
different rows, each from the mass of the rows that are not in the batch yet; or new rows before the first ones."""

DEFAULT_BETA: Final = 0.4
"""Initial exponent of the weights for proportional priorities (Schaul et al. 2016, section 4)."""

Prefetch = int | Literal["auto"]
"""Batches that a sampler keeps in flight. "auto": the fewest, from 2 to 16, with which the learner does not wait."""


class SamplerOptions(TypedDict, total=False):
    """Options of all samplers; see `Table.sampler`, which also has their defaults."""

    beta: float
    weight_norm: WeightNorm
    draw_mode: DrawMode
    prefetch: Prefetch
    timeout_s: float | None
    reconnect_timeout_s: float | None
    columns: Collection[str] | None
    row_info: bool


_WEIGHT_NORMS: Final[Mapping[str, replay_pb2.WeightNorm.ValueType]] = {
    "batch": replay_pb2.WEIGHT_NORM_BATCH,
    "table": replay_pb2.WEIGHT_NORM_TABLE,
}
_DRAW_MODES: Final[Mapping[str, replay_pb2.DrawMode.ValueType]] = {
    "stratified": replay_pb2.DRAW_MODE_STRATIFIED,
    "independent": replay_pb2.DRAW_MODE_INDEPENDENT,
    "without_replacement": replay_pb2.DRAW_MODE_WITHOUT_REPLACEMENT,
    "newest_first": replay_pb2.DRAW_MODE_NEWEST_FIRST,
}

_LARGEST: Final = 2**63 - 1


def draw_of(
    batch_size: int,
    beta: float,
    weight_norm: WeightNorm = "batch",
    draw_mode: DrawMode = "stratified",
    wait_s: float = 0.0,
    columns: replay_pb2.ColumnNames | None = None,
    row_info: bool = False,
) -> replay_pb2.Draw:
    """Build the message for a draw; see `Table.sample` for the arguments.

    ``columns`` are the names of the stored columns that replies must carry; None stands for the server's default.
    """
    if not isinstance(row_info, bool):
        raise InvalidArgumentError.of_field("row_info", "True or False", repr(row_info))
    return replay_pb2.Draw(
        batch_size=checked_count("batch_size", batch_size),
        beta=checked_beta(beta),
        weight_norm=_named("weight_norm", weight_norm, _WEIGHT_NORMS),
        draw_mode=_named("draw_mode", draw_mode, _DRAW_MODES),
        wait_s=wait_s,
        columns=columns,
        row_info=row_info,
    )


def checked_count(field: str, number: int, *, least: int = 1, most: int = _LARGEST, example: str = "") -> int:
    """Check that a number is an integer from ``least`` to ``most``, and not a bool; ``example`` is for the error."""
    try:
        count = operator.index(number)
        if not isinstance(number, bool) and least <= count <= most:
            return count
    except TypeError:
        pass
    end = f"2 ** {most.bit_length()} - 1" if most >= _LARGEST else str(most)
    expected = f"a whole number from {least} to {end}" + (f", such as {example}" if example else "")
    raise InvalidArgumentError.of_field(field, expected, repr(number))


def checked_capacity(capacity: float) -> int:
    """Check that a table's capacity is a whole number of at least 1, which may be a float such as 1e6."""
    is_whole = isinstance(capacity, float) and capacity.is_integer()
    return checked_count("capacity", int(capacity) if is_whole else capacity, example="1_000_000")  # type: ignore[arg-type]


def checked_beta(beta: float) -> float:
    """Check the exponent of the weights."""
    if type(beta) is float and 0.0 <= beta < math.inf:  # usually
        return beta
    try:
        if np.ndim(beta) == 0 and math.isfinite(beta) and beta >= 0:
            return float(beta)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidArgumentError.of_field("beta", "a finite number of at least 0", repr(beta))


def with_beta(draw: replay_pb2.Draw, beta: float) -> replay_pb2.Draw:
    """Return a copy of a draw with another exponent. Batches in flight refer to the original, which is unchanged."""
    copied = replay_pb2.Draw()
    copied.CopyFrom(draw)
    copied.beta = checked_beta(beta)
    return copied


def _named(field: str, name: str, known: Mapping[str, V]) -> V:
    if not isinstance(name, str) or name not in known:
        raise InvalidArgumentError.of_field(field, " or ".join(map(repr, known)), repr(name))
    return known[name]
