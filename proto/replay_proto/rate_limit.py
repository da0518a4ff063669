"""A table's rate limit, which balances draws and inserts. Its semantics and bounds follow Reverb."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from replay_proto.errors import FieldError
from replay_proto.v1 import replay_pb2

LARGEST_RATIO = 2.0**100
"""Largest ratio of samples to inserts; its inverse is the smallest ratio. Realistic ratios are far from both."""
LARGEST_BOUND = 2.0**200
"""Largest magnitude of the difference. With these two limits, counters up to 2^48 cannot overflow the arithmetic."""

LARGEST_MIN_SIZE = 1 << 48
"""Largest ``min_size`` in rows: no table has more keys."""

ErrorBuffer = float | tuple[float, float]
"""Allowed difference, as a deviation from ``min_size * samples_per_insert``, or as a minimum and a maximum."""


@dataclass(frozen=True)
class RateLimit:
    """See RateLimiter in the protocol."""

    min_size: int = 1
    """Draws wait until there are this many rows."""
    samples_per_insert: float | None = None
    """Average number of draws per row; None: no ratio."""
    min_diff: float = -math.inf
    """Minimum of the difference ``inserted * samples_per_insert - sampled``. Draws that would go below it wait."""
    max_diff: float = math.inf
    """Maximum of the difference. Inserts that would exceed it wait."""

    def __post_init__(self) -> None:
        """Validate as Reverb does, and refuse what would block draws or inserts forever."""
        if not 1 <= self.min_size <= LARGEST_MIN_SIZE:
            raise FieldError("min_size", f"1 to {LARGEST_MIN_SIZE}", str(self.min_size))
        ratio = self.samples_per_insert
        if ratio is None:
            if (self.min_diff, self.max_diff) != (-math.inf, math.inf):
                raise FieldError("error_buffer", "none without samples_per_insert", f"{self.min_diff}, {self.max_diff}")
            return
        if not 1 / LARGEST_RATIO <= ratio <= LARGEST_RATIO:
            raise FieldError(
                "samples_per_insert", f"a number from {1 / LARGEST_RATIO:.2g} to {LARGEST_RATIO:.2g}", str(ratio)
            )
        if not (abs(self.min_diff) <= LARGEST_BOUND and abs(self.max_diff) <= LARGEST_BOUND):
            raise FieldError(
                "error_buffer",
                f"numbers from -{LARGEST_BOUND:.2g} to {LARGEST_BOUND:.2g}",
                f"{self.min_diff}, {self.max_diff}",
            )
        least = 2 * max(1.0, ratio)
        if self.max_diff - self.min_diff < least:
            raise FieldError(
                "error_buffer",
                f"a span (2 * error_buffer) of at least 2 * max(1, samples_per_insert) = {least:g}, or the table might "
                "block forever",
                f"{self.max_diff - self.min_diff:g}",
            )
        if self.min_diff > ratio * self.min_size:
            raise FieldError(
                "error_buffer",
                f"a lower bound of at most samples_per_insert * min_size = {ratio * self.min_size:g}",
                f"{self.min_diff:g}",
            )

    @classmethod
    def of(
        cls, min_size: float | None, samples_per_insert: float | None, error_buffer: ErrorBuffer | None
    ) -> RateLimit | None:
        """Create a limit from the parameters of Reverb's ``MinSize`` and ``SampleToInsertRatio``.

        Args:
            min_size: a whole number; None: 1.
            samples_per_insert: average number of draws per row; None: no ratio.
            error_buffer: required with a ratio.

        Returns:
            None if no argument is given.

        Raises:
            FieldError: names the invalid field.
        """
        given = 1.0 if min_size is None else _finite("min_size", min_size)
        if not (abs(given) <= LARGEST_MIN_SIZE and given.is_integer()):
            raise FieldError("min_size", f"a whole number up to {LARGEST_MIN_SIZE}", repr(min_size))
        least = int(given)
        if samples_per_insert is None:
            if error_buffer is not None:
                raise FieldError("error_buffer", "none without samples_per_insert", repr(error_buffer))
            return None if min_size is None else cls(least)
        if error_buffer is None:
            raise FieldError("error_buffer", "a number or two, since samples_per_insert is given", "none")
        ratio = _finite("samples_per_insert", samples_per_insert)
        if isinstance(error_buffer, int | float):
            middle, buffer = ratio * least, _finite("error_buffer", error_buffer)
            return cls(least, ratio, middle - buffer, middle + buffer)
        if not isinstance(error_buffer, tuple | list) or len(error_buffer) != 2:
            raise FieldError("error_buffer", "a number or two", repr(error_buffer))
        lower, upper = error_buffer
        return cls(least, ratio, _finite("error_buffer", lower), _finite("error_buffer", upper))

    @property
    def largest_insert(self) -> int | None:
        """Number of rows up to which any insert is allowed once enough rows have been drawn; None: unlimited."""
        if self.samples_per_insert is None:
            return None
        # Draws of single samples bring the difference to less than 1 above min_diff.
        return max(1, math.floor((self.max_diff - self.min_diff - 1) / self.samples_per_insert))

    def to_proto(self) -> replay_pb2.RateLimiter:
        """Convert to the protobuf message."""
        if self.samples_per_insert is None:
            return replay_pb2.RateLimiter(min_size=self.min_size)
        return replay_pb2.RateLimiter(
            min_size=self.min_size,
            samples_per_insert=self.samples_per_insert,
            min_diff=self.min_diff,
            max_diff=self.max_diff,
        )

    @classmethod
    def from_proto(cls, message: replay_pb2.RateLimiter) -> RateLimit:
        """Convert from the protobuf message."""
        if not (message.samples_per_insert or message.min_diff or message.max_diff):
            return cls(message.min_size)
        return cls(message.min_size, message.samples_per_insert or None, message.min_diff, message.max_diff)


def divided(limit: RateLimit, shards: int) -> RateLimit:
    """Divide a table's limit equally among its shards, and return the limit of one shard.

    Raises:
        FieldError: the bounds are too narrow for so many shards.
    """
    return replace(
        limit,
        min_size=-(-limit.min_size // shards),
        min_diff=limit.min_diff / shards,
        max_diff=limit.max_diff / shards,
    )


def joined(limits: Sequence[RateLimit]) -> RateLimit:
    """Join the limits of a table's shards into the limit of the whole table."""
    return replace(
        limits[0],
        min_size=sum(limit.min_size for limit in limits),
        min_diff=sum(limit.min_diff for limit in limits),
        max_diff=sum(limit.max_diff for limit in limits),
    )


def _finite(field: str, value: float) -> float:
    """Convert a number to a finite float; Python ints can be too large."""
    try:
        is_finite = math.isfinite(value)
    except (TypeError, OverflowError):
        is_finite = False
    if not is_finite:
        raise FieldError(field, "a finite number", repr(value))
    return float(value)
