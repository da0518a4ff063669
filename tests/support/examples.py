"""How many examples hypothesis tries: few by default, more in deep runs."""

from __future__ import annotations

import os

_TIMES = int(os.environ.get("EXAMPLES_TIMES", "1"))


def examples(number: int) -> int:
    """Number of examples, ``number`` by default; `make test-deep` multiplies it."""
    return number * _TIMES
