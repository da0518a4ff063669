"""Columns with any options, for hypothesis."""

from __future__ import annotations

from dataclasses import fields

from hypothesis import strategies as st
from replay_proto.schema import DTYPES, Column

_OPTIONS: dict[str, st.SearchStrategy[object]] = {"optional": st.booleans(), "mutable": st.booleans()}
_OF_STEPS = {"sampled", "at"}
"""Options that only tables of steps have."""


def columns(largest: int) -> st.SearchStrategy[Column]:
    """Columns of a plain table, with dimensions up to ``largest``."""
    missing = {each.name for each in fields(Column)} - {"dtype", "shape", *_OPTIONS, *_OF_STEPS}
    assert not missing, f"a new option of Column needs a strategy here: {missing}"
    shapes = st.lists(st.integers(1, largest), max_size=3)
    return st.builds(Column, st.sampled_from(list(DTYPES)), shapes, **_OPTIONS)
