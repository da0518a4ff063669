"""Draws bars and curves in a terminal; plotext draws the curves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from replay_client.cli.formats import count_text

Floats = NDArray[np.float64]

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_COLUMNS = "▁▂▃▄▅▆▇█"
"""Heights of a sparkline; the lowest stands for 0."""
_LEAST_BAR = 4
_LABEL_WIDTH = 6
"""Characters between two labels of an axis."""
_LEAST_SPAN = 1.0
"""Minimum length of an axis in decades, so that a nearly level line looks level."""


def bar_chart(named: Sequence[tuple[str, float]], width: int, styles: tuple[str, str]) -> Table:
    """Draw horizontal bars of these names and values, scaled to the longest; at least one value is above 0.

    ``width`` includes names and values. ``styles`` are those of the bars and of the values.
    """
    counts = [count_text(round(value)) for _, value in named]
    room = max(_LEAST_BAR, width - max(len(name) for name, _ in named) - max(map(len, counts)) - 2)
    most = max(value for _, value in named)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(width=room, style=styles[0], no_wrap=True)
    grid.add_column(justify="right", style=styles[1], no_wrap=True)
    for (name, value), count in zip(named, counts, strict=True):
        grid.add_row(name, _bar_text(value / most, room), count)
    return grid


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw the last ``width`` values (at least 0) as columns, scaled to the largest. The newest is at the right."""
    last = list(values)[-width:] if width > 0 else []
    most = max(last, default=0.0)
    columns = (_COLUMNS[math.ceil(value / most * (len(_COLUMNS) - 1)) if most else 0] for value in last)
    return "".join(columns).rjust(width)


def log_log_plot(x: Floats, y: Floats, line: Floats | None, width: int, height: int, styles: tuple[str, str]) -> Text:
    """Plot a curve on top of a reference line, if there is one, on logarithmic axes.

    The points ``x``, float64[n], ascend; all values are above 0. Width in characters and height in lines include
    labels. ``styles`` are the colors of the curve and of the line.
    """
    import plotext  # takes 0.2 s to import

    figure = plotext.figure
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(width, height)
    figure.axes(False, axis=[0, 1], side=1)
    for axis, values, labels in (("x", x, width // _LABEL_WIDTH), ("y", y, height // 2)):
        low, high = _decades(values)
        ruler = figure.ruler(axis)
        # Plot exponents: plotext's scale "log" labels ticks with fractions.
        ruler.lim(low, high)
        step = max(1, -(-(math.floor(high) - math.ceil(low) + 1) // max(2, labels)))
        ticks = list(range(math.ceil(low), math.floor(high) + 1, step))
        ruler.ticks(ticks, [_power(tick) for tick in ticks])
    for curve, style in ((line, styles[1]), (y, styles[0])):
        if curve is not None:
            marker = plotext.marker("braille", style or None)
            figure.draw(figure.signal(np.log10(x).tolist(), np.log10(curve).tolist(), marker=marker).lines())
    return Text.from_ansi(figure.build().string().rstrip("\n"))


def _bar_text(share: float, width: int) -> str:
    """Draw a bar of block characters; nonzero values are always visible."""
    eighths = round(share * width * 8)
    whole, part = divmod(max(eighths, int(share > 0)), 8)
    return "█" * whole + _EIGHTHS[part].strip()


def _decades(values: Floats) -> tuple[float, float]:
    """Return the ends of an axis for these values, as exponents of ten."""
    low, high = math.log10(float(values.min())), math.log10(float(values.max()))
    missing = max(0.0, _LEAST_SPAN - (high - low)) / 2
    return low - missing, high + missing


def _power(decade: int) -> str:
    return f"{10**decade:,}" if 0 <= decade <= 3 else f"1e{decade}"
