"""Time limits mean the same wherever a caller may give one.

- `None`: the client's own limit, the `timeout_s` of `ReplayClient`
- ``0``: do not wait
- `math.inf`: wait for ever
- any other number: wait for so many seconds

Deadlines inside the library are moments of a clock, `math.inf` among them.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Final

from replay_client.errors import InvalidArgumentError

LONGEST_WAIT_S: Final = 1e9
"""30 years. Threads, sockets and gRPC cannot take much longer waits, so that a longer one has no end at all."""


def time_limit(field: str, limit_s: object, own_s: float) -> float:
    """A caller's time limit in seconds.

    Args:
        field: the parameter's name.
        limit_s: what the caller gave, in seconds.
        own_s: the client's own limit in seconds, for None.

    Raises:
        InvalidArgumentError: for NaN, a negative number, or anything that is not a number.
    """
    if limit_s is None:
        return own_s
    # False and True are numbers to Python.
    seconds = math.nan if isinstance(limit_s, bool) or not isinstance(limit_s, Real) else float(limit_s)
    if not seconds >= 0:
        raise InvalidArgumentError.of_field(
            field,
            "seconds from 0 (do not wait) to math.inf (wait forever), or None (the client's default)",
            repr(limit_s),
        )
    return math.inf if seconds > LONGEST_WAIT_S else seconds


def left_s(deadline: float, now: float) -> float | None:
    """How long to wait until a deadline, in seconds, for functions to which None means without end."""
    return None if deadline == math.inf else max(0.0, deadline - now)
