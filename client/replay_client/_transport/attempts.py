"""Decides how often and for how long to try if a server does not answer, without I/O, threads or clocks.

    attempts = Attempts(deadline)
    while True:
        try:
            return call()
        except ReplayError as error:
            pause_s = attempts.failed(error, now)           # raises the error if another attempt cannot help
        sleep(pause_s)

Callers do the I/O and pass the time, on any clock.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterator
from typing import Final

import grpc

from replay_client._transport.address import how_to_start
from replay_client.errors import DeadlineExceededError, ReplayError, ServerUnavailableError, note_handshake

log = logging.getLogger(__name__)

FIRST_CONTACT_S: Final = 1.5
"""Default time limit for the first contact."""
CUT_AFTER_S: Final = 1.0
"""A call or stream that ends after at least this long may have been cut off by a proxy while it waited."""
ANSWERING_S: Final = 1.0
"""Time limit for checking that the server is there."""
CHECKS: Final = 3
CHECK_AGAIN_S: Final = 0.1
"""How often that is checked, because a check may be cut off, too, and the pause between."""
_KNOCK_S: Final = 0.5
"""Minimum time limit of an attempt at the first contact."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 0.5
_JITTER: Final = 0.25


def pauses_s() -> Iterator[float]:
    """Yield the pauses between attempts, forever: exponential backoff with jitter."""
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s * random.uniform(1 - _JITTER, 1 + _JITTER)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


class Attempts:
    """The attempts of one idempotent call."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._pauses_s = pauses_s()
        self._failed = 0
        self._away: ServerUnavailableError | None = None

    def failed(self, error: ReplayError, now: float) -> float:
        """Return the seconds to pause after an attempt that failed with this error.

        Raises:
            ReplayError: another attempt cannot help, or would come after the deadline.
        """
        self._failed += 1
        if isinstance(error, DeadlineExceededError) and self._away is not None and not error.reason:
            raise self._away from None  # report that the server was unreachable, instead of a timeout
        if not isinstance(error, ServerUnavailableError):
            error.attempts = self._failed
            raise error
        self._away = error
        pause_s = next(self._pauses_s)
        if now + pause_s >= self._deadline:
            raise error
        return pause_s


class FirstContact:
    """The attempts at the first contact with a server."""

    def __init__(self, address: str, wait_for_server_s: float, now: float, *, is_tls: bool) -> None:
        self._address = address
        self._is_tls = is_tls
        self._deadline = now + wait_for_server_s
        self._warn_at = now + FIRST_CONTACT_S
        self._pauses_s = pauses_s()

    def limit_s(self, now: float) -> float:
        """Return the time limit of the next attempt, in seconds."""
        return FIRST_CONTACT_S if self._deadline == math.inf else max(self._deadline - now, _KNOCK_S)

    def refusal(self, code: grpc.StatusCode, detail: str) -> ServerUnavailableError | None:
        """Convert the status of a failed attempt to an error. Return None if the status came from a server."""
        if code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return None
        over = " over TLS" if self._is_tls else ""
        return _unreached(f"{self._address}{over}; {how_to_start(self._address)}", detail)

    def pause_s(self, refusal: ServerUnavailableError, now: float) -> float | None:
        """Return the seconds until the next attempt, or None if it would come too late."""
        pause_s = next(self._pauses_s)
        if now + pause_s >= self._deadline:
            return None
        if now >= self._warn_at:
            log.warning("%s; waiting", refusal)
            self._warn_at = math.inf
        return pause_s

    def given_up(self, refusal: ServerUnavailableError, *, listens: bool) -> ServerUnavailableError:
        """Return the error to raise. ``listens`` says whether anything accepts connections at the address."""
        if not listens:
            return refusal
        # A server binds its port before it restores its tables.
        tls = "has no TLS, or a certificate that REPLAY_TLS_CA does not trust" if self._is_tls else "requires TLS"
        return _unreached(
            f"{self._address} yet. If one is still starting there, retry, or increase wait_for_server_s in Python; "
            f"otherwise it {tls}, or another program is using the port",
            refusal.metadata["detail"],
        )


def _unreached(message: str, detail: str) -> ServerUnavailableError:
    error = ServerUnavailableError(f"no replay server answers at {message}", metadata={"detail": detail})
    note_handshake(error, detail)
    return error
