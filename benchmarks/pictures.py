"""Pictures of figures: step times side by side, and how they grow with the number of rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

RESOLUTION_DPI = 120
_OWN_COLOR, _OTHER_COLOR = "#3182bd", "#9e9e9e"
_OWN = ("sampl", "service")
"""How the names of the service's own contestants begin."""

Growth = Mapping[str, Mapping[str, Mapping[int, Sequence[float]]]]
"""Microseconds per step in each round, by panel, contestant and number of rows."""


def draw_steps(panels: Mapping[str, Mapping[str, Sequence[float]]], path: Path) -> None:
    """Write a PNG picture of times per step.

    Args:
        panels: by title, the microseconds per step in each round by contestant.
        path: where to.
    """
    if not panels:
        return
    inches = 0.6 + sum(0.9 + 0.3 * len(times) for times in panels.values())
    figure = Figure(figsize=(11.0, inches), layout="constrained")
    FigureCanvasAgg(figure)
    heights = [len(times) for times in panels.values()]
    all_axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights, sharex=True).ravel()
    for axes, (title, times) in zip(all_axes, panels.items(), strict=True):
        _draw_bars(axes, title, times)
    all_axes[-1].set_xlabel("microseconds per step; bars: median, lines: smallest to largest round")
    figure.savefig(path, dpi=RESOLUTION_DPI, format="png")


def _draw_bars(axes: Axes, title: str, times: Mapping[str, Sequence[float]]) -> None:
    medians = [statistics.median(values) for values in times.values()]
    spans = [
        [median - min(values) for median, values in zip(medians, times.values(), strict=True)],
        [max(values) - median for median, values in zip(medians, times.values(), strict=True)],
    ]
    colors = [_OWN_COLOR if name.startswith(_OWN) else _OTHER_COLOR for name in times]
    bars = axes.barh(list(times), medians, xerr=spans, color=colors, error_kw={"lw": 1})
    axes.bar_label(bars, [f"{median:,.0f}" for median in medians], padding=6, fontsize="small")
    axes.set(title=title, xscale="log")
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.grid(axis="x", which="both", alpha=0.2)


def draw_growth(growth: Growth, path: Path) -> None:
    """Write a PNG picture of times per step over the number of rows, a panel beside the other."""
    figure = Figure(figsize=(6.0 * len(growth), 5.0), layout="constrained")
    FigureCanvasAgg(figure)
    all_axes = figure.subplots(1, len(growth), squeeze=False, sharey=True).ravel()
    for axes, (title, contestants) in zip(all_axes, growth.items(), strict=True):
        for name, by_rows in contestants.items():
            rows = sorted(by_rows)
            medians = [statistics.median(by_rows[count]) for count in rows]
            axes.plot(rows, medians, "o-" if name.startswith(_OWN) else "s--", ms=4, label=name)
            axes.fill_between(
                rows, [min(by_rows[count]) for count in rows], [max(by_rows[count]) for count in rows], alpha=0.15
            )
        axes.set(title=title, xlabel="rows", xscale="log", yscale="log")
        axes.grid(which="both", alpha=0.2)
    all_axes[0].set_ylabel("microseconds per learner step")
    all_axes[0].legend()
    figure.savefig(path, dpi=RESOLUTION_DPI, format="png")
