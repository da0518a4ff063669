"""Compares learning curves: a table of final results for the terminal, and a plot over the whole training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from experiments.compare.defaults import SWEEP_SEED, ReplayMethod
from experiments.compare.runs import PAPER, Contestant, Curve, TrainingKey
from experiments.compare.statistics import Estimate, interquartile_mean, mean, probability_of_improvement

SIZE_INCHES: Final = (16.0, 5.5)
RESOLUTION_DPI: Final = 120
COLORS: Final[Mapping[ReplayMethod, str]] = {
    ReplayMethod.UNIFORM: "black",
    ReplayMethod.PROPORTIONAL: "#1f77b4",
    ReplayMethod.RANK: "#d62728",
}
"""Colors as in the paper's figures."""
BAND_ALPHA: Final = 0.15
FINAL_SHARE: Final = 0.1
"""Fraction of validations averaged for the final return."""
EVEN: Final = 0.5


@dataclass(frozen=True, eq=False)
class Group:
    """The runs of one contestant."""

    contestant: Contestant
    origin: str
    """Where its step size comes from."""
    steps: NDArray[np.int64]
    """int64[validations]: environment steps."""
    returns: NDArray[np.float64]
    """float64[runs, validations]: mean returns."""

    @property
    def overall(self) -> NDArray[np.float64]:
        """Mean return of each run over its whole training, float64[runs]. Runs that learn faster have higher means."""
        return np.asarray(self.returns.mean(axis=1))

    @property
    def final(self) -> NDArray[np.float64]:
        """Mean return of each run over its last validations, float64[runs]."""
        count = max(1, round(FINAL_SHARE * self.returns.shape[1]))
        return np.asarray(self.returns[:, -count:].mean(axis=1))

    @property
    def label(self) -> str:
        """Label for the plot."""
        return f"{self.contestant} ({self.origin})"


def groups_of(curves: Mapping[TrainingKey, Curve]) -> list[Group]:
    """Group the compared runs by contestant, with the paper's contestants first."""
    runs: dict[Contestant, list[Curve]] = defaultdict(list)
    for key, curve in curves.items():
        if key.seed < SWEEP_SEED:
            runs[key.contestant].append(curve)
    order = sorted(runs, key=lambda found: (found not in PAPER, list(ReplayMethod).index(found.method), found.factor))
    other = "best of sweep" if any(key.seed >= SWEEP_SEED for key in curves) else "same step size"
    return [_group(contestant, "paper" if contestant in PAPER else other, runs[contestant]) for contestant in order]


def _group(contestant: Contestant, origin: str, curves: Sequence[Curve]) -> Group:
    last = min(curve[-1].step for curve in curves)
    steps = np.array([point.step for point in curves[0] if point.step <= last], dtype=np.int64)
    returns = np.array([_returns_at(steps, curve) for curve in curves])
    return Group(contestant, origin, steps, returns)


def _returns_at(steps: NDArray[np.int64], curve: Curve) -> NDArray[np.float64]:
    """Return float64[n]: the returns at these steps, interpolated where the run has no validation.

    All runs are validated at the same steps, but one that was killed may skip a few of them.
    """
    return np.interp(steps, [point.step for point in curve], [point.mean_return for point in curve])


def summary_table(env: str, groups: Sequence[Group]) -> Table:
    """Return a table of the results of each contestant, with 95 % intervals over runs."""
    table = Table(
        title=f"{env}: returns with 95 % intervals; P(better) than uniform replay",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for name in ("", "", "over training", "at the end"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    baseline = _baseline(groups)
    for group in groups:
        # Three lines per entry, because a single line would exceed 80 characters.
        contestant = group.contestant
        table.add_row(
            f"{contestant.method}, x {contestant.factor:g}", "mean", str(mean(group.overall)), str(mean(group.final))
        )
        middle = interquartile_mean(group.overall), interquartile_mean(group.final)
        table.add_row(f"  {group.origin}", "IQM", *map(str, middle))
        better = "" if baseline is None or group is baseline else str(_improvement(group, baseline))
        table.add_row(f"  {len(group.returns)} runs", "P(better)" if better else "", better, "")
    return table


def draw(env: str, groups: Sequence[Group], path: Path) -> None:
    """Plot returns against environment steps, and the probability of beating uniform replay, as a PNG file."""
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    left, middle, right = figure.subplots(1, 3)
    runs = " to ".join(map(str, sorted({len(group.returns) for group in groups})))
    for axes, statistic, name in ((left, mean, "mean"), (middle, interquartile_mean, "interquartile mean")):
        for group in groups:
            _draw_curve(axes, group, [statistic(group.returns[:, at]) for at in range(len(group.steps))])
        axes.set(title=f"{name} of {runs} runs, 95 % intervals", xlabel="environment steps")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(alpha=0.3)
    left.set_ylabel(f"{env}: mean return of evaluations")
    # Below the panels, to avoid covering curves.
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    _draw_improvements(right, groups)
    figure.savefig(path, dpi=RESOLUTION_DPI)


def _draw_curve(axes: Any, group: Group, estimates: Sequence[Estimate]) -> None:
    color = COLORS[group.contestant.method]
    style = "-" if group.contestant in PAPER else "--"
    axes.plot(group.steps, [estimate.value for estimate in estimates], style, color=color, label=group.label)
    low, high = [estimate.low for estimate in estimates], [estimate.high for estimate in estimates]
    axes.fill_between(group.steps, low, high, color=color, alpha=BAND_ALPHA, lw=0)


def _draw_improvements(axes: Any, groups: Sequence[Group]) -> None:
    baseline = _baseline(groups)
    others = [group for group in groups if baseline is not None and group is not baseline]
    for place, group in enumerate(reversed(others)):
        assert baseline is not None
        found = _improvement(group, baseline)
        axes.plot([found.low, found.high], [place, place], "-", color=COLORS[group.contestant.method], lw=2)
        axes.plot(found.value, place, "o", color=COLORS[group.contestant.method])
    axes.axvline(EVEN, color="gray", ls=":", lw=1)
    axes.set(
        title="P(better than uniform replay)",
        xlabel="of the mean return over training, 95 % intervals",
        xlim=(-0.02, 1.02),
        yticks=range(len(others)),
        yticklabels=[group.label.replace(", ", "\n") for group in reversed(others)],
        ylim=(-0.5, max(len(others), 1) - 0.5),
    )
    axes.grid(alpha=0.3, axis="x")


def _baseline(groups: Sequence[Group]) -> Group | None:
    return next((group for group in groups if group.contestant == PAPER[0]), None)


def _improvement(group: Group, baseline: Group) -> Estimate:
    return probability_of_improvement(group.overall, baseline.overall)
