"""How many examples hypothesis tries: few in every run of the tests, more where somebody asks for them."""

from __future__ import annotations

import os

_TIMES = int(os.environ.get("EXAMPLES_TIMES", "1"))


def examples(number: int) -> int:
    """Examples of a test that tries ``number`` in every run; `make test-deep` tries many times as many."""
    return number * _TIMES
