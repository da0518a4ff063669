"""Formats rows for people: scalars as they are, large arrays as shape and range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.columns import Columns
from rich.console import RenderableType
from rich.text import Text

from replay_client.batch import Rows

_MOST_ELEMENTS = 4
"""Larger arrays are summarized."""


def row_text(rows: Rows, place: int, styles: tuple[str, str]) -> RenderableType:
    """Render a row as ``name value`` pairs, as many per line as fit. ``styles`` are those of names and of values."""
    return Columns(_pairs(rows, place, styles), padding=(0, 2))


def row_line(rows: Rows, place: int, styles: tuple[str, str]) -> Text:
    """Render a row like `row_text`, but in one line."""
    return Text("  ").join(_pairs(rows, place, styles))


def _pairs(rows: Rows, place: int, styles: tuple[str, str]) -> Iterator[Text]:
    pairs = [(name, value_text(values[place])) for name, values in rows.columns.items()]
    if rows.streams[place] or rows.episodes[place]:
        pairs += [("stream", str(rows.streams[place])), ("episode", str(rows.episodes[place]))]
    if rows.steps is not None:
        pairs.append(("step", str(rows.steps[place])))
    for name, value in pairs:
        yield Text.assemble((name, styles[0]), " ", (value, styles[1]))


def value_text(value: NDArray[Any]) -> str:
    """Format a value, such as ``0.5`` or ``[1, 2]``. Summarize a large array, such as ``uint8[84,84] 0..255``."""
    array = np.asarray(value)
    if array.ndim == 0:
        return _element(array[()])
    if array.size <= _MOST_ELEMENTS:
        return f"[{', '.join(map(_element, array.ravel()))}]"
    shape = ",".join(map(str, array.shape))
    return f"{array.dtype}[{shape}] {_element(array.min())}..{_element(array.max())}"


def _element(value: Any) -> str:
    if isinstance(value, np.bool_):
        return "true" if value else "false"
    return f"{value:.4g}" if isinstance(value, np.floating) else str(value)
