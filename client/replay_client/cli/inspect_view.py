"""The terminal view of `replay inspect`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from replay_client.batch import Rows
from replay_client.cli.distribution import PROPORTIONAL, RANKED, Bar, Distributions, PowerLaw, labelled
from replay_client.cli.row_text import row_text
from replay_client.cli.text_plot import bar_chart, log_log_plot
from replay_client.cli.units import count_text, duration_text, edge_text, number_text

_ACCENT, _FAINT = "cyan", "dim"
_WIDE = 120
"""Minimum terminal width for three panels side by side instead of two."""
_PLOT_LINES = 12
_FRAME = 4
"""Width of a panel's border and padding."""
_LEVEL = 5e-4
"""Smaller exponents would be displayed as 0."""
_QUEUE = "A queue: draws return the oldest\nrows, regardless of priority;\nprobabilities and weights are 1."


def inspect_view(found: Distributions, rows: Rows, width: int) -> RenderableType:
    """Render the distributions of a table as panels, and the live rows with the largest priorities as a list.

    ``width`` is the terminal's width in characters.
    """
    inspection = found.inspection
    name = Text(inspection.table.name, f"bold {_ACCENT}", overflow="fold")
    if not len(inspection.ranks):
        return Group(name, _facts(found, width), Text("no rows", _FAINT))
    per_row = 3 if width >= _WIDE else 2
    inner = width // per_row - _FRAME
    panels: list[tuple[str, Table | Text]] = [
        ("table", _facts(found, inner)),
        ("probability by rank", _rank_plot(found, inner) if found.is_drawn_by_priority else Text(_QUEUE, _FAINT)),
        ("rows by priority", _bars(found.priorities, edge_text, inner)),
        (
            f"rows by weight, beta {number_text(found.beta)}",
            _bars(found.weights, edge_text, inner) if found.is_drawn_by_priority else Text(_QUEUE, _FAINT),
        ),
        ("rows by age", _bars(found.ages_s, duration_text, inner)),
        ("rows by times drawn", _bars(found.times_sampled, _whole, inner)),
    ]
    grid = Table.grid(expand=True)
    for _ in range(per_row):
        grid.add_column(ratio=1)
    for first in range(0, len(panels), per_row):
        together = panels[first : first + per_row]
        height = max(_lines(content) for _, content in together) + 2
        grid.add_row(*(Panel(content, title=title, box=box.ROUNDED, height=height) for title, content in together))
    return Group(name, grid, _largest(found, rows))


def _lines(content: Table | Text) -> int:
    return content.row_count if isinstance(content, Table) else str(content).count("\n") + 1


def _facts(found: Distributions, width: int) -> Table:
    inspection = found.inspection
    table = inspection.table
    drawn = found.is_drawn_by_priority
    how = "all, exact" if inspection.is_exact else f"{count_text(inspection.looked_at)} at random"
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style=_FAINT, no_wrap=True)
    grid.add_column(no_wrap=True, max_width=max(1, width - 14))
    grid.add_row("backend", table.backend)
    for name, value in table.parameters.items():
        grid.add_row(name, number_text(value))
    grid.add_row("rows", f"{count_text(table.size)} of {count_text(table.capacity)}")
    if len(inspection.ranks):
        grid.add_row("looked at", how)
        grid.add_row(
            "priorities", f"{number_text(inspection.priorities[-1])} to {number_text(inspection.priorities[0])}"
        )
    if drawn:
        grid.add_row("total mass", number_text(inspection.total_mass))
        configured = f", alpha {number_text(table.parameters.get('alpha', 0.0))}"
        if table.backend == PROPORTIONAL:
            grid.add_row("P by priority", _exponent("p", found.by_priority) + configured)
        else:
            grid.add_row("P by rank", _exponent("rank", found.by_rank) + configured * (table.backend == RANKED))
        grid.add_row("mean weight", f"{number_text(found.mean_weight)} of a draw")
    return grid


def _exponent(of: str, law: PowerLaw | None) -> str:
    return "all alike" if law is None or abs(law.exponent) < _LEVEL else f"{of}^{law.exponent:.3f}"


def _rank_plot(found: Distributions, width: int) -> Text:
    inspection = found.inspection
    drawn = inspection.probabilities > 0
    ranks = inspection.ranks[drawn].astype(float)
    line = None if found.by_rank is None else found.by_rank.at(ranks)
    return log_log_plot(ranks, inspection.probabilities[drawn], line, width, _PLOT_LINES, (_ACCENT, "gray"))


def _bars(bars: Sequence[Bar], as_text: Callable[[float], str], width: int) -> Table:
    return bar_chart(labelled(bars, as_text), width, (_ACCENT, _FAINT))


def _whole(count: float) -> str:
    return count_text(int(count))


def _largest(found: Distributions, rows: Rows) -> Table:
    largest = found.inspection.largest
    place = {int(key): index for index, key in enumerate(rows.row_keys)}
    grid = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0), expand=True)
    for heading in ("#", "key", "priority", "probability", "age", "drawn"):
        grid.add_column(heading, justify="right", no_wrap=True)
    grid.add_column("row", ratio=1)
    for rank, key in enumerate(largest.row_keys.tolist()):
        grid.add_row(
            str(rank + 1),
            str(key),
            number_text(float(largest.priorities[rank])),
            number_text(float(largest.probabilities[rank])),
            duration_text(float(largest.ages_s[rank])),
            count_text(int(largest.times_sampled[rank])),
            row_text(rows, place[key], (_FAINT, "")) if key in place else Text("gone meanwhile", _FAINT),
        )
    return grid
