"""Curves in a terminal: dots of Braille characters, two by four in each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

Floats = NDArray[np.float64]

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a Braille character, by row and column of the dot."""
_BLANK = 0x2800
_DOT_COLUMNS, _DOT_ROWS = 2, 4
_LABEL_WIDTH = 6
"""Characters of a label of the vertical axis."""
_LEAST_SPAN = 1.0
"""Decades of an axis, at least: a level line is no cliff."""


@dataclass(frozen=True)
class _Axis:
    """A span of decades."""

    low: float
    high: float

    @classmethod
    def over(cls, values: Floats) -> _Axis:
        low, high = math.log10(float(values.min())), math.log10(float(values.max()))
        missing = max(0.0, _LEAST_SPAN - (high - low)) / 2
        return cls(low - missing, high + missing)

    def place(self, value: Floats, count: int) -> NDArray[np.int64]:
        """On which of ``count`` dots values lie."""
        share = (np.log10(value) - self.low) / (self.high - self.low)
        return np.asarray((share * (count - 1)).round().astype(np.int64))

    def decades(self, most: int) -> list[int]:
        """Whole decades to name, at most so many."""
        first, last = math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9)
        step = max(1, -(-(last - first + 1) // most))
        return list(range(first, last + 1, step))


def log_log_plot(x: Floats, y: Floats, line: Floats | None, width: int, height: int, styles: tuple[str, str]) -> Text:
    """A curve, and a line below it, over logarithmic axes.

    Args:
        x: float64[n], ascending, above 0; n at least 1.
        y: float64[n], above 0.
        line: float64[n]: the line's values; None: there is none.
        width: characters, the labels included.
        height: lines, the labels included.
        styles: of the curve, and of the line and the labels.
    """
    columns, lines = width - _LABEL_WIDTH - 1, height - 2
    across, up = _Axis.over(x), _Axis.over(y)
    curve = _canvas(x, y, across, up, columns, lines)
    below = None if line is None else _canvas(x, line, across, up, columns, lines)
    names = {
        lines - 1 - int(place) // _DOT_ROWS: _power(decade)
        for decade in up.decades(max(2, lines // 2))
        for place in up.place(np.array([10.0**decade]), lines * _DOT_ROWS)
    }
    text = Text()
    for row in range(lines):
        text.append(names.get(row, "").rjust(_LABEL_WIDTH) + ("┤" if row in names else "│"), styles[1])
        for column in range(columns):
            if curve[row, column] or below is None:
                text.append(chr(_BLANK + int(curve[row, column])), styles[0])
            else:
                text.append(chr(_BLANK + int(below[row, column])), styles[1])
        text.append("\n")
    return text.append(_bottom(across, columns), styles[1])


def _canvas(x: Floats, y: Floats, across: _Axis, up: _Axis, columns: int, lines: int) -> NDArray[np.int64]:
    """int64[lines, columns]: dots of a curve, each a bit; what lies beyond the axes is left out."""
    width, height = columns * _DOT_COLUMNS, lines * _DOT_ROWS
    ends = np.log10([x[0], x[-1]])
    dots_x = np.linspace(ends[0], ends[1], 2 * width)
    dots_y = np.interp(dots_x, np.log10(x), np.log10(y))
    # Points of the curve itself as well: between two columns of dots it may be steep.
    every_x = across.place(np.concatenate([10.0**dots_x, x]), width)
    every_y = up.place(np.concatenate([10.0**dots_y, y]), height)
    canvas = np.zeros((lines, columns), np.int64)
    for dot_x, dot_y in zip(every_x.tolist(), every_y.tolist(), strict=True):
        if 0 <= dot_y < height and 0 <= dot_x < width:
            from_top = height - 1 - dot_y
            bit = _DOTS[from_top % _DOT_ROWS][dot_x % _DOT_COLUMNS]
            canvas[from_top // _DOT_ROWS, dot_x // _DOT_COLUMNS] |= bit
    return canvas


def _bottom(axis: _Axis, columns: int) -> str:
    """The horizontal axis and its labels."""
    edge, labels = ["─"] * columns, [" "] * (columns + _LABEL_WIDTH)
    free = 0
    for decade in axis.decades(max(2, columns // _LABEL_WIDTH)):
        place = int(axis.place(np.array([10.0**decade]), columns)[0])
        name = _power(decade)
        begin = min(place, columns - len(name))
        if begin < free:
            continue
        edge[place] = "┬"
        labels[begin : begin + len(name)] = name
        free = begin + len(name) + 1
    margin = " " * (_LABEL_WIDTH + 1)
    return f"{' ' * _LABEL_WIDTH}└{''.join(edge)}\n{margin}{''.join(labels).rstrip()}"


def _power(decade: int) -> str:
    if 0 <= decade <= 3:
        return f"{10**decade:,}"
    return f"1e{decade}"
