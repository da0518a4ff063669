"""Words about environment variables."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


def without_effect(name: str, known: Sequence[str]) -> str:
    """Describe a variable that no program reads, and suggest the nearest of the ``known`` ones."""
    near = get_close_matches(name, known, n=1)
    return f"the variable {name} has no effect: there is no such setting" + (
        f"; did you mean {near[0]}?" if near else ""
    )
