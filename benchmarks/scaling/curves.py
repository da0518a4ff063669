"""Draws the picture of "Sizing": the steps of all learners, and what limits them, by number of servers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.scaling.costs import Costs
from benchmarks.scaling.simulation import Simulation
from benchmarks.scaling.sizing import APE_X, BUSY, MACHINE, SHORTEST_DELAY_S

SERVERS: Final = tuple(range(1, 9))
LEARNERS: Final = (1, 2, 4, 8)
_SECONDS: Final = 6.0
_MARKERS: Final = {
    "CPU of servers": "s",
    "network of servers": "^",
    "CPU of learners": "o",
    "network of learners": "v",
}
_COLORS: Final = ("#3182bd", "#31a354", "#e6550d", "#756bb1")
_DPI: Final = 100


def draw(costs: Costs, path: Path) -> None:
    """Run the simulations, and draw their results as a PNG file."""
    figure = Figure(figsize=(8.0, 7.6), layout="constrained")
    FigureCanvasAgg(figure)
    steps, shares = figure.subplots(2, 1, sharex=True)
    _draw_steps(steps, costs)
    _draw_shares(shares, costs)
    shares.set(xlabel="servers", xticks=SERVERS)
    for axes in (steps, shares):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=_DPI, format="png")


def _draw_steps(axes: Axes, costs: Costs) -> None:
    for learners, color in zip(LEARNERS, _COLORS, strict=True):
        fleet = replace(APE_X, learners=learners)
        outcomes = [Simulation(fleet, costs, MACHINE, servers).run(_SECONDS) for servers in SERVERS]
        axes.plot(SERVERS, [each.steps_per_s for each in outcomes], color=color, label=f"learners: {learners}")
        axes.axhline(learners * fleet.steps_per_s, color=color, ls=":", lw=1)
        for servers, outcome in zip(SERVERS, outcomes, strict=True):
            axes.plot(servers, outcome.steps_per_s, _MARKERS[outcome.bound], color=color, ms=6)
    for bound, marker in _MARKERS.items():
        axes.plot([], [], marker, color="0.4", label=f"busiest: {bound}")
    axes.set(title="Steps of all learners per second; dotted: as many as they could compute", yscale="log")
    axes.legend(fontsize="small", ncols=2)


def _draw_shares(axes: Axes, costs: Costs) -> None:
    kinds = (("as the servers ask", None, "-"), ("a message each 0.1 s", SHORTEST_DELAY_S, "--"))
    for (name, delay, style), learners in ((kind, learners) for kind in kinds for learners in (1, 8)):
        fleet = replace(APE_X, learners=learners)
        outcomes = [Simulation(fleet, costs, MACHINE, servers, delay).run(_SECONDS) for servers in SERVERS]
        color = _COLORS[LEARNERS.index(learners)]
        label = f"core, learners: {learners}; writers send {name}"
        axes.plot(SERVERS, [each.core for each in outcomes], style, color=color, label=label)
        if delay is None:
            network = [each.network for each in outcomes]
            axes.plot(SERVERS, network, ":", color=color, label=f"network, learners: {learners}")
    axes.axhline(BUSY, color="0.4", lw=1)
    axes.set(title="Shares that the busiest server uses, and the limit of 0.6", ylim=(0, 1.05))
    axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
