"""Formats numbers and rows for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.columns import Columns
from rich.console import RenderableType
from rich.text import Text

from replay_client.batch import Rows

_COUNT_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))
_BYTE_STEPS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3_600, 60


def count_text(count: float) -> str:
    """Format a count, such as 9,876, 12.3k or 4.56M."""
    for size, letter in _COUNT_STEPS:
        if count >= size:
            return f"{_three_digits(count / (1e3 if letter == 'k' else size))}{letter}"
    return f"{count:,.0f}" if count >= 10 or float(count).is_integer() else f"{count:.1f}"


def bytes_text(count: float) -> str:
    """Format a number of bytes, such as 45 B or 1.23 MiB."""
    for size, unit in _BYTE_STEPS:
        if count >= size:
            return f"{_three_digits(count / size)} {unit}"
    return f"{count:.0f} B"


def duration_text(seconds: float) -> str:
    """Format a duration, such as 3.2 s, 4 min 5 s, 2 h 3 min or 1 d 4 h."""
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S} s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S} min"
    return f"{whole // _DAY_S} d {whole % _DAY_S // _HOUR_S} h"


def number_text(value: float) -> str:
    """Format a number of any size, to four digits."""
    return f"{value:.4g}"


def edge_text(value: float) -> str:
    """Format a bound of an interval, to three digits."""
    return f"{value:.3g}"


def printable_text(text: str) -> str:
    """Replace characters that would control the terminal; names come from the server."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def shortened_text(text: str, width: int) -> str:
    """Cut out the middle of a text that is longer than ``width`` characters: names often differ at their ends."""
    if len(text) <= width:
        return text
    tail = max(0, width - 1) // 2
    return f"{text[: max(0, width - 1 - tail)]}…{text[len(text) - tail :]}"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


ACCENT = "cyan"
"""Color of names."""
FAINT = "dim"
"""Style of what matters less."""


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
