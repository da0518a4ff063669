"""Summary of the Blind Cliffwalk results: a table for the terminal, and the paper's plot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich import box
from rich.table import Table

from experiments.cliffwalk.q_learning import Representation
from experiments.cliffwalk.replays import Method
from experiments.cliffwalk.runs import RunResult
from experiments.cliffwalk.walk import Cliffwalk

SIZE_INCHES: Final = (12.0, 5.4)
RESOLUTION_DPI: Final = 120
COLORS: Final[Mapping[Method, str]] = {
    Method.UNIFORM: "black",
    Method.ORACLE: "#17becf",
    Method.GREEDY: "#2ca02c",
    Method.PROPORTIONAL: "#1f77b4",
    Method.RANK: "#d62728",
}
"""Colors as in figures 1 and 2 of the paper, which assign none to greedy replay."""
BAND_ALPHA: Final = 0.15
_WHOLE_FROM: Final = 10.0
"""Ratios of at least this are shown without decimals, so that tables fit into 80 characters."""


@dataclass(frozen=True)
class Point:
    """Summary of the runs of one method with one number of states."""

    transitions: int
    seeds: int
    lowest: int
    median: float
    highest: int
    at_least: bool
    """Whether the median is only a lower bound, because runs at or below it were aborted."""


Curves = Mapping[Representation, Mapping[Method, Mapping[int, Point]]]
"""Points by representation, method and number of states."""


def summarize(results: Sequence[RunResult]) -> Curves:
    """Summarize the runs by representation, method and number of states, using the last result of each run."""
    latest = {result.key: result for result in results}
    grouped: dict[tuple[Representation, Method, int], list[RunResult]] = defaultdict(list)
    for key, result in latest.items():
        grouped[key.representation, key.method, key.states].append(result)
    curves: dict[Representation, dict[Method, dict[int, Point]]] = defaultdict(lambda: defaultdict(dict))
    for representation, method, states in sorted(grouped, key=lambda group: group[2]):
        curves[representation][method][states] = _point(states, grouped[representation, method, states])
    return curves


def _point(states: int, results: Sequence[RunResult]) -> Point:
    updates = [result.updates for result in results]
    median = float(np.median(updates))
    given_up = [result.updates for result in results if not result.learned]
    return Point(
        transitions=Cliffwalk(states).memory_size,
        seeds=len(results),
        lowest=min(updates),
        median=median,
        highest=max(updates),
        at_least=any(count <= median for count in given_up),
    )


def summary_table(curves: Curves, representation: Representation) -> Table:
    """Return a table of median updates by number of states and method, with speedups over uniform replay."""
    by_method = curves.get(representation, {})
    methods = [method for method in Method if method in by_method]
    table = Table(
        title=f"{representation}: median updates (uniform / this) by states and transitions in memory",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=0,
    )
    for name in ("states", "memory", *methods):
        table.add_column(name, justify="right", overflow="fold")
    for states in sorted({states for points in by_method.values() for states in points}):
        points = [by_method[method].get(states) for method in methods]
        uniform = by_method.get(Method.UNIFORM, {}).get(states)
        table.add_row(
            str(states),
            f"{Cliffwalk(states).memory_size:,}",
            *(_cell(point, uniform) for point in points),
        )
    return table


def _cell(point: Point | None, uniform: Point | None) -> str:
    if point is None:
        return ""
    text = f"{'≥ ' if point.at_least else ''}{point.median:,.0f}"
    if uniform is None or uniform is point or point.at_least:
        return text
    ratio = uniform.median / point.median
    return f"{text} ({'≥ ' if uniform.at_least else ''}{ratio:.{int(ratio < _WHOLE_FROM)}f})"


def draw(curves: Curves, path: Path) -> None:
    """Plot median updates against memory size as a PNG file, like figures 1 and 2 of the paper."""
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    shown = [representation for representation in Representation if curves.get(representation)]
    panels = figure.subplots(1, max(1, len(shown)), squeeze=False, sharey=True)[0]
    for axes, representation in zip(panels, shown, strict=False):
        _draw_panel(axes, curves[representation])
        axes.set(title=f"Blind Cliffwalk, {representation}", xlabel="transitions in the replay memory")
    panels[0].set_ylabel("updates until learned (median; band: min to max)")
    labelled = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    # Below the panels, to avoid covering curves.
    figure.legend(labelled.values(), labelled, loc="outside lower center", ncols=6, frameon=False)
    figure.savefig(path, dpi=RESOLUTION_DPI)


def _draw_panel(axes: Any, by_method: Mapping[Method, Mapping[int, Point]]) -> None:
    sizes = sorted({point.transitions for points in by_method.values() for point in points.values()})
    axes.plot(sizes, sizes, ":", color="gray", lw=1, label="one update per transition")
    for method in Method:
        points = list(by_method.get(method, {}).values())
        if not points:
            continue
        x = [point.transitions for point in points]
        axes.plot(x, [point.median for point in points], "o-", ms=4, color=COLORS[method], label=str(method))
        axes.fill_between(
            x,
            [point.lowest for point in points],
            [point.highest for point in points],
            color=COLORS[method],
            alpha=BAND_ALPHA,
            lw=0,
        )
        bounds = [point for point in points if point.at_least]
        if bounds:
            axes.plot(
                [point.transitions for point in bounds],
                [point.median for point in bounds],
                "^",
                ms=10,
                mfc="none",
                color=COLORS[method],
                label=f"{method}: at least",
            )
    axes.set(xscale="log", yscale="log")
    axes.grid(alpha=0.3)
