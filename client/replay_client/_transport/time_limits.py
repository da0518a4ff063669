"""Time limits, which have the same meaning in all calls.

- `None`: the client's default, the `timeout_s` of `ReplayClient`
- ``0``: do not wait
- `math.inf`: wait forever
- any other number: wait for that many seconds

Inside the library, a deadline is a time on the clock `time.monotonic`, or `math.inf`.
"""

from __future__ import annotations

import math
import time
from numbers import Real
from typing import Final

from replay_client.errors import InvalidArgumentError

LONGEST_WAIT_S: Final = 1e9
"""30 years. Longer limits count as endless, because threads, sockets and gRPC do not support them."""


def time_limit(field: str, limit_s: object, own_s: float) -> float:
    """Check a caller's time limit ``limit_s`` and return it in seconds; ``own_s`` is the client's default.

    Raises:
        InvalidArgumentError: for NaN, a negative number, or anything that is not a number.
    """
    if limit_s is None:
        return own_s
    # bool is a subclass of int.
    seconds = math.nan if isinstance(limit_s, bool) or not isinstance(limit_s, Real) else float(limit_s)
    if not seconds >= 0:
        raise InvalidArgumentError.of_field(
            field,
            "seconds from 0 (do not wait) to math.inf (wait forever), or None (the client's default)",
            repr(limit_s),
        )
    return math.inf if seconds > LONGEST_WAIT_S else seconds


def left_s(deadline: float) -> float | None:
    """Return the seconds until a deadline, or None if it is `math.inf`."""
    return None if deadline == math.inf else max(0.0, deadline - time.monotonic())
