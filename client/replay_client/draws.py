"""Options of a draw, validated and converted to protobuf."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np
from replay_proto.v1 import replay_pb2

from replay_client.errors import InvalidArgumentError

WeightNorm = Literal["batch", "table"]
"""Normalize importance-sampling weights by the largest in the batch, or that of the least probable live row."""
DrawMode = Literal["stratified", "independent"]
"""One draw from each of `batch_size` equal segments of the mass (Schaul et al. 2016, section 3.3), or from all."""

_WEIGHT_NORMS: Final[Mapping[str, replay_pb2.WeightNorm.ValueType]] = {
    "batch": replay_pb2.WEIGHT_NORM_BATCH,
    "table": replay_pb2.WEIGHT_NORM_TABLE,
}
_DRAW_MODES: Final[Mapping[str, replay_pb2.DrawMode.ValueType]] = {
    "stratified": replay_pb2.DRAW_MODE_STRATIFIED,
    "independent": replay_pb2.DRAW_MODE_INDEPENDENT,
}

_LIMIT: Final = 2**63
_UNWEIGHTED: Final = ("uniform", "fifo")
"""Backends with equal probabilities, so all weights are 1."""


@dataclass(frozen=True)
class DrawOptions:
    """A batch to draw."""

    batch_size: int
    """Number of rows, at least 1; with replacement, so it may exceed the table's size."""
    beta: float
    """Exponent of the importance-sampling weights: 0 for no correction, 1 for full correction."""
    weight_norm: WeightNorm = "batch"
    """Normalization of the weights."""
    draw_mode: DrawMode = "stratified"
    """How rows are drawn."""
    wait_s: float = 0.0
    """Seconds to wait until the table allows the draw; 0: do not wait; `math.inf`: forever."""

    def __post_init__(self) -> None:
        """Validate values that protobuf cannot represent.

        Raises:
            InvalidArgumentError: for an unknown name, or something that is not a number.
        """
        _check_name("weight_norm", self.weight_norm, _WEIGHT_NORMS)
        _check_name("draw_mode", self.draw_mode, _DRAW_MODES)
        checked_whole("batch_size", self.batch_size)
        _check_beta(self.beta)

    def with_beta(self, beta: float) -> DrawOptions:
        """A copy with another beta."""
        return replace(self, beta=beta)

    def to_proto(self) -> replay_pb2.Draw:
        """The draw as a message; do not modify it."""
        return self._message

    @cached_property
    def _message(self) -> replay_pb2.Draw:
        return replay_pb2.Draw(
            batch_size=operator.index(self.batch_size),
            beta=float(self.beta),
            weight_norm=_WEIGHT_NORMS[self.weight_norm],
            draw_mode=_DRAW_MODES[self.draw_mode],
            wait_s=self.wait_s,
        )


def _check_name(field: str, name: str, known: Mapping[str, object]) -> None:
    if not isinstance(name, str) or name not in known:
        raise InvalidArgumentError.of_field(field, " or ".join(map(repr, known)), repr(name))


def beta_for(backend: str, beta: float | None) -> float:
    """The exponent of the weights, optional for backends whose weights are always 1.

    Raises:
        InvalidArgumentError: it is missing but required.
    """
    if beta is not None:
        return beta
    if backend in _UNWEIGHTED:
        return 0.0
    raise InvalidArgumentError.of_field("beta", f"a number of at least 0, required for {backend!r}", "none")


def checked_whole(field: str, number: int) -> int:
    """Check that a number is an integer below 2^63, and not a bool.

    Raises:
        InvalidArgumentError: for anything else.
    """
    try:
        whole = operator.index(number)
        if not isinstance(number, bool) and abs(whole) < _LIMIT:
            return whole
    except TypeError:
        pass
    raise InvalidArgumentError.of_field(field, "a whole number below 2 ** 63", repr(number))


def _check_beta(beta: float) -> None:
    try:
        if np.ndim(beta) == 0 and math.isfinite(beta) and beta >= 0:
            return
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidArgumentError.of_field("beta", "a finite number of at least 0", repr(beta))
