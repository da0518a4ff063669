"""Plots of step times: side by side, and by number of rows."""

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
"""Prefixes of the names of the service's own contestants."""

Growth = Mapping[str, Mapping[str, Mapping[int, Sequence[float]]]]
"""Microseconds per step in each round, by panel, contestant and number of rows."""


def draw_steps(panels: Mapping[str, Mapping[str, Sequence[float]]], path: Path) -> None:
    """Plot times per step as a PNG file.

    Args:
        panels: microseconds per step in each round, by title and contestant.
        path: the file to write.
    """
    if not panels:
        return
    inches = 0.6 + sum(0.9 + 0.3 * len(times) for times in panels.values())
    figure = Figure(figsize=(11.0, inches), layout="constrained")
    FigureCanvasAgg(figure)
    heights = [len(times) for times in panels.values()]
    all_axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights, sharex=True).ravel()
    for axes, (title, times) in zip(all_axes, panels.items(), strict=True):
        _draw_spans(axes, title, times)
    all_axes[-1].set_xlabel("microseconds per step; points: median, lines: smallest to largest round")
    figure.savefig(path, dpi=RESOLUTION_DPI, format="png")


def _draw_spans(axes: Axes, title: str, times: Mapping[str, Sequence[float]]) -> None:
    # Use points, because the length of a bar has no meaning on a logarithmic axis.
    medians = [statistics.median(values) for values in times.values()]
    colors = [_OWN_COLOR if name.startswith(_OWN) else _OTHER_COLOR for name in times]
    places = list(range(len(times)))
    axes.hlines(places, list(map(min, times.values())), list(map(max, times.values())), colors, lw=2)
    axes.scatter(medians, places, color=colors)
    for place, values in enumerate(times.values()):
        label = f"{statistics.median(values):,.0f}"
        axes.annotate(label, (max(values), place), (8, 0), textcoords="offset points", va="center", fontsize="small")
    axes.set(title=title, xscale="log", yticks=places, yticklabels=list(times))
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.grid(axis="x", which="both", alpha=0.2)


def draw_growth(growth: Growth, path: Path) -> None:
    """Plot times per step over the number of rows as a PNG file, with panels side by side."""
    figure = Figure(figsize=(6.0 * len(growth), 5.4), layout="constrained")
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
    # Below the panels, to avoid covering curves.
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(path, dpi=RESOLUTION_DPI, format="png")
