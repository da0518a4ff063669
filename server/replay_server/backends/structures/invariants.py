"""How a structure reports that one of its invariants is broken."""

from __future__ import annotations


def require(holds: bool, invariant: str) -> None:
    """Raise AssertionError with ``invariant`` as its message unless it holds; also under ``python -O``."""
    if not holds:
        raise AssertionError(f"broken invariant: {invariant}")
