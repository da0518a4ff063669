"""Turns WaitStats into a sentence about the calls that wait for a table. All views show the same sentence.

1 learner waits for rows: 3,120 of 10,000, about 4 s
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

RECENT_S = 10
"""The server estimates how long a call will wait from the rates of inserts and draws in the last this many seconds."""
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


class _Words(NamedTuple):
    caller: str
    what: str
    progress: str
    stuck: str
    """What to say if there was no progress lately."""


def _without(cause: str) -> str:
    return f"no {cause} in the last {RECENT_S} s"


_WORDS: Mapping[str, _Words] = {
    "rows": _Words("learner", "rows", "{have:,} of {needed:,}", _without("inserts")),
    "windows": _Words(
        "learner",
        "windows",
        "{needed:,} rows would hold one of each stream, the capacity is {have:,}",
        "it is too small",
    ),
    "samples": _Words("learner", "inserts", "{have:,} of {needed:,} samples allowed", _without("inserts")),
    "inserts": _Words("writer", "draws", "{have:,} of {needed:,} samples drawn", _without("draws")),
    "room": _Words("writer", "room", "{have:,} of {needed:,} rows", _without("draws")),
    "turn": _Words("writer", "a turn", "{needed:,} large inserts or resets come first", "these end by themselves"),
}


LACKS: Mapping[str, str] = {
    "rows": "{have:,} of {needed:,} rows",
    "windows": "{needed:,} rows would hold a window of each stream, but the capacity is {have:,}",
    "samples": "{have:,} of {needed:,} samples allowed",
    "inserts": "{have:,} of {needed:,} samples drawn",
    "room": "room for {have:,} of {needed:,} rows",
    "turn": "{needed:,} large inserts or resets come first",
}
"""How far a wait is, by what it is for; fields of WAITED_TOO_LONG."""
ENDS: Mapping[str, str] = {
    "rows": "it has too few rows to draw",
    "windows": "steps are evicted before their windows are complete; use a larger capacity, shorter windows, or fewer "
    "streams at the same time",
    "samples": "its rate limiter allows no more draws until rows are inserted",
    "inserts": "its rate limiter allows no more inserts until rows are drawn",
    "room": "the queue is full until rows are drawn",
    "turn": "a large insert or a reset is in progress",
}
"""Why a call waits, and what would end that."""


def waited_text(table: str, waited_s: float, waited_for: str, have: int, needed: int) -> str:
    """Say what a call to a table has waited for; the last arguments are fields of WAITED_TOO_LONG and WaitStats."""
    lack = LACKS.get(waited_for, "{have:,} of {needed:,}").format(have=have, needed=needed)
    return f"table {table!r}: waited {waited_s:g} s for {waited_for}: {lack}; {ENDS.get(waited_for, 'still waiting')}"


def wait_sentence(
    waited_for: str, calls: int, have: int, needed: int, waited_s: float, expected_s: float | None
) -> str:
    """Say who waits for what, and how much longer; the arguments are the fields of WaitStats."""
    words = _WORDS.get(waited_for) or _Words("caller", waited_for, "{have:,} of {needed:,}", _without("progress"))
    who = f"1 {words.caller} waits" if calls == 1 else f"{calls:,} {words.caller}s wait"
    progress = words.progress.format(have=have, needed=needed)
    left = words.stuck if expected_s is None else _about(expected_s)
    so_far = f" ({duration_text(waited_s)} so far)" if waited_s >= 1 else ""
    return f"{who} for {words.what}: {progress}, {left}{so_far}"


def _about(seconds: float) -> str:
    return f"about {duration_text(seconds)}" if seconds >= 1 else duration_text(seconds)


def duration_text(seconds: float) -> str:
    """Round a duration to its largest unit; two units would suggest too much precision."""
    if seconds < 1:
        return "less than 1 s"
    size, unit = next((size, unit) for size, unit in _UNITS if seconds >= size)
    return f"{seconds / size:,.0f} {unit}"
