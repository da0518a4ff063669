"""Helpers for tables with rate limiters and for waiting calls."""

from __future__ import annotations

from replay_proto.rate_limit import ErrorBuffer, RateLimit
from replay_proto.v1 import replay_pb2

from tests.support.caller import CalledTable
from tests.support.deadlines import wait_until


def rate_limiter(
    min_size: int = 1, samples_per_insert: float | None = None, error_buffer: ErrorBuffer | None = None
) -> replay_pb2.RateLimiter:
    """A rate limiter, given Reverb's parameters."""
    limit = RateLimit.of(min_size, samples_per_insert, error_buffer)
    assert limit is not None
    return limit.to_proto()


def wait_for_waiting(table: CalledTable, calls: int) -> None:
    """Wait until this many calls wait for a table."""
    wait_until(lambda: table.stats().waiting == calls, f"{calls} calls wait")
