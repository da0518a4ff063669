"""The plot of `replay inspect --png`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from replay_client.cli.distribution import (
    PROPORTIONAL,
    Bar,
    Distributions,
    Floats,
    PowerLaw,
    labelled,
    priorities_in_force,
)
from replay_client.cli.formats import count_text, duration_text, edge_text, number_text
from replay_client.results.description import FIFO

SIZE_INCHES = (15.0, 8.0)
RESOLUTION_DPI = 110
_IN_FORCE = {PROPORTIONAL: "min(priority + epsilon, max_priority)"}
_BELOW_AXES = -0.14
"""Vertical position of the legend below axes and label, as a fraction of the axes' height."""
_CURVE_COLOR, _FIT_COLOR, _BAR_COLOR = "#3182bd", "#e6550d", "#6baed6"


def draw_picture(found: Distributions, path: Path) -> None:
    """Write the distributions of a table as a PNG picture."""
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_title(found))
    by_rank, by_priority, priorities, weights, ages, times = figure.subplots(2, 3).ravel()
    by_rank.set(title="probability by rank", xlabel="rank", ylabel="probability")
    _draw_probability(by_rank, found, "rank", found.inspection.ranks.astype(np.float64), "-", found.by_rank)
    xlabel = _IN_FORCE.get(found.inspection.table.backend, "priority")
    by_priority.set(title="probability by priority", xlabel=xlabel, ylabel="probability")
    _draw_probability(by_priority, found, "priority", priorities_in_force(found.inspection), ".", found.by_priority)
    _draw_bars(priorities, found.priorities, edge_text, "rows by priority")
    _draw_bars(weights, found.weights, edge_text, f"rows by weight, beta {number_text(found.beta)}")
    _draw_bars(ages, found.ages_s, duration_text, "rows by age")
    _draw_bars(times, found.times_sampled, lambda count: count_text(int(count)), "rows by times drawn")
    figure.savefig(path, dpi=RESOLUTION_DPI, format="png")


def _title(found: Distributions) -> str:
    inspection = found.inspection
    table = inspection.table
    parameters = "".join(f", {name} {number_text(value)}" for name, value in table.parameters.items())
    how = "; a queue: draws return the oldest rows" if table.backend == FIFO else ""
    looked = "" if inspection.is_exact else f", ranks beyond 10 estimated from {count_text(inspection.looked_at)}"
    return f"{table.name}: {table.backend}{parameters}; {count_text(table.size)} rows{looked}{how}"


def _draw_probability(axes: Axes, found: Distributions, by: str, x: Floats, style: str, law: PowerLaw | None) -> None:
    """Draw probabilities against ``x`` with their fit, labeled with the fitted and the configured exponent."""
    inspection = found.inspection
    positive = x > 0
    if not found.is_drawn_by_priority or not positive.any():
        _say_none(axes)
        return
    axes.set(xscale="log", yscale="log")
    axes.plot(x[positive], inspection.probabilities[positive], style, ms=4, color=_CURVE_COLOR, label="rows")
    if law is not None:
        sign = "-" if by == "rank" else ""
        alpha = number_text(inspection.table.parameters["alpha"])
        label = f"fit: {by} ^ {law.exponent:.3f} (configured: {sign}{alpha})"
        axes.plot(x[positive], law.at(x[positive]), "--", color=_FIT_COLOR, label=label)
    # Below the axes, to avoid covering curves.
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, _BELOW_AXES), ncols=3, frameon=False)
    axes.grid(alpha=0.3)


def _draw_bars(axes: Axes, bars: Sequence[Bar], as_text: Callable[[float], str], title: str) -> None:
    axes.set(title=title, ylabel="rows")
    if not bars:
        _say_none(axes)
        return
    named = labelled(bars, as_text)
    axes.bar(range(len(named)), [rows for _, rows in named], width=0.95, color=_BAR_COLOR)
    axes.set_xticks(range(len(named)), [name for name, _ in named], rotation=35, ha="right", fontsize="small")
    axes.yaxis.set_major_formatter(lambda value, _: count_text(value))
    axes.grid(axis="y", alpha=0.3)


def _say_none(axes: Axes) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, "none", ha="center", va="center", transform=axes.transAxes)
