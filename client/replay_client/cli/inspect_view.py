"""The terminal view of `replay inspect`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from replay_client.batch import Rows
from replay_client.cli.distribution import PROPORTIONAL, Bar, Distributions, PowerLaw, labelled
from replay_client.cli.formats import (
    ACCENT,
    FAINT,
    count_text,
    duration_text,
    edge_text,
    number_text,
    printable_text,
    row_line,
    row_text,
)
from replay_client.cli.text_plot import bar_chart, log_log_plot
from replay_client.results.description import RANK
from replay_client.results.inspection import Inspection

_WIDE = 120
"""Minimum terminal width for three panels side by side instead of two."""
_PLOT_LINES = 12
_FRAME = 4
"""Width of a panel's border and padding."""
_EDGES = 2
"""Lines that a panel's border takes, and lines that the heading of the list of rows takes."""
_LEAST_LINES = 5
"""Minimum lines of a panel's content in a view that fits into the terminal."""
_LEAST_ROWS = 2
"""Rows that such a view shows before it adds more panels."""
_LEVEL = 5e-4
"""Minimum exponent to display; smaller ones would be displayed as 0."""
_QUEUE = "A queue: draws return the oldest\nrows, regardless of priority;\nprobabilities and weights are 1."


@dataclass(frozen=True, eq=False)
class Inspected:
    """What `replay inspect` shows of a table."""

    inspection: Inspection
    """The distribution of its rows."""
    rows: Rows
    """The live rows with the largest priorities."""
    beta: float
    """Exponent of the importance-sampling weights."""

    def distributions(self, most_bars: int | None = None) -> Distributions:
        """Compute the histograms; see `Distributions.of`."""
        return Distributions.of(self.inspection, self.beta, most_bars)

    def __str__(self) -> str:
        """Summarize the table's rows in one line."""
        table = self.inspection.table
        size = f"{table.name} {table.size:,} of {table.capacity:,} rows"
        if not len(self.inspection.ranks):
            return size
        return f"{size}, priorities {_span(self.inspection)}, total mass {number_text(self.inspection.total_mass)}"


def inspect_view(seen: Inspected, width: int) -> RenderableType:
    """Render the distributions of a table as panels, and the live rows with the largest priorities as a list.

    ``width`` is the terminal's width in characters.
    """
    found = seen.distributions()
    if not len(seen.inspection.ranks):
        return Group(_name(seen), _facts_grid(found, width), Text("no rows", FAINT))
    per_row = _panels_per_row(width)
    inner = width // per_row - _FRAME
    panels = [("table", _facts_grid(found, inner)), *_panels(found, inner, _PLOT_LINES)]
    largest = _largest(seen, len(seen.inspection.largest.row_keys), is_short=False)
    return Group(_name(seen), _side_by_side(panels, per_row), largest)


def inspect_screen(console: Console, seen: Inspected, problem: str) -> RenderableType:
    """Render like `inspect_view`, but leave out bars, panels and rows that do not fit into the terminal's height.

    ``problem`` says why there is nothing newer to show; empty if there is no problem.
    """
    width, inspection = console.width, seen.inspection
    per_row = _panels_per_row(width)
    labels = (Text.assemble((f"{label} ", FAINT), value) for label, value in _facts(seen.distributions()))
    facts = Text("  ").join(labels)
    header = [*([Text(problem, "red")] if problem else []), _name(seen), facts]
    if not len(inspection.ranks):
        return Group(*header, Text("no rows", FAINT))
    room = console.height - len(console.render_lines(Group(*header), pad=False)) - _EDGES
    wanted = len(inspection.largest.row_keys)
    least = _LEAST_LINES + _EDGES
    most_panels = -(-len(_panels(seen.distributions(), width, _LEAST_LINES)) // per_row)
    panel_rows = max(0, min(most_panels, (room - min(wanted, _LEAST_ROWS)) // least))
    rows = max(0, min(wanted, room - panel_rows * least))
    lines = min(_PLOT_LINES, (room - rows) // max(1, panel_rows) - _EDGES)
    panels = _panels(seen.distributions(max(1, lines)), width // per_row - _FRAME, lines)[: panel_rows * per_row]
    return Group(*header, _side_by_side(panels, per_row), _largest(seen, rows, is_short=True))


def _panels_per_row(width: int) -> int:
    return 3 if width >= _WIDE else 2


def _name(seen: Inspected) -> Text:
    name = Text(printable_text(seen.inspection.table.name), f"bold {ACCENT}", overflow="fold")
    away = ", ".join(map(str, seen.inspection.shards_away))
    return name.append(f"  without shard {away}, which is away", "red") if away else name


def _panels(found: Distributions, width: int, lines: int) -> list[tuple[str, Table | Text]]:
    """Return titles and contents of panels, the most important ones first."""
    drawn = found.is_drawn_by_priority
    weights = _bars(found.weights, edge_text, width) if drawn else Text(_QUEUE, FAINT)
    return [
        ("probability by rank", _rank_plot(found, width, lines) if drawn else Text(_QUEUE, FAINT)),
        ("rows by priority", _bars(found.priorities, edge_text, width)),
        ("rows by age", _bars(found.ages_s, duration_text, width)),
        ("rows by times drawn", _bars(found.times_sampled, _whole, width)),
        (f"rows by weight, beta {number_text(found.beta)}", weights),
    ]


def _side_by_side(panels: Sequence[tuple[str, Table | Text]], per_row: int) -> Table:
    grid = Table.grid(expand=True)
    for _ in range(per_row):
        grid.add_column(ratio=1)
    for first in range(0, len(panels), per_row):
        together = panels[first : first + per_row]
        height = max(_lines(content) for _, content in together) + _EDGES
        grid.add_row(*(Panel(content, title=title, box=box.ROUNDED, height=height) for title, content in together))
    return grid


def _lines(content: Table | Text) -> int:
    return content.row_count if isinstance(content, Table) else str(content).count("\n") + 1


def _facts(found: Distributions) -> Iterator[tuple[str, str]]:
    inspection = found.inspection
    table = inspection.table
    yield "backend", printable_text(table.backend)
    for name, value in table.parameters.items():
        yield name, number_text(value)
    yield "rows", f"{count_text(table.size)} of {count_text(table.capacity)}"
    if len(inspection.ranks):
        yield "looked at", _looked_at(inspection)
        yield "priorities", _span(inspection)
    if found.is_drawn_by_priority:
        yield "total mass", number_text(inspection.total_mass)
        configured = f", alpha {number_text(table.parameters.get('alpha', 0.0))}"
        if table.backend == PROPORTIONAL:
            yield "P by priority", _exponent("p", found.by_priority) + configured
        else:
            yield "P by rank", _exponent("rank", found.by_rank) + configured * (table.backend == RANK)
        yield "mean weight", f"{number_text(found.mean_weight)} of a draw"


def _looked_at(inspection: Inspection) -> str:
    if inspection.is_exact:
        return "all, exact"
    if inspection.is_mixed:
        return f"{count_text(inspection.looked_at)}, by shard"
    return f"{count_text(inspection.looked_at)} at random"


def _facts_grid(found: Distributions, width: int) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style=FAINT, no_wrap=True)
    grid.add_column(no_wrap=True, max_width=max(1, width - 14))
    for label, value in _facts(found):
        grid.add_row(label, value)
    return grid


def _span(inspection: Inspection) -> str:
    return f"{number_text(inspection.priorities[-1])} to {number_text(inspection.priorities[0])}"


def _exponent(of: str, law: PowerLaw | None) -> str:
    return "all alike" if law is None or abs(law.exponent) < _LEVEL else f"{of}^{law.exponent:.3f}"


def _rank_plot(found: Distributions, width: int, lines: int) -> Text:
    inspection = found.inspection
    drawn = inspection.probabilities > 0
    ranks = inspection.ranks[drawn].astype(float)
    line = None if found.by_rank is None else found.by_rank.at(ranks)
    return log_log_plot(ranks, inspection.probabilities[drawn], line, width, lines, (ACCENT, "gray"))


def _bars(bars: Sequence[Bar], as_text: Callable[[float], str], width: int) -> Table:
    return bar_chart(labelled(bars, as_text), width, (ACCENT, FAINT))


def _whole(count: float) -> str:
    return count_text(int(count))


def _largest(seen: Inspected, count: int, *, is_short: bool) -> Table | Text:
    """Render the first ``count`` rows as a list. If ``is_short``, each takes one line, whose end may be cut off."""
    if not count:
        return Text()
    largest, rows = seen.inspection.largest, seen.rows
    place = {int(key): index for index, key in enumerate(rows.row_keys)}
    grid = Table(
        box=box.SIMPLE_HEAD, header_style="bold", show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), expand=True
    )
    for heading in ("#", "key", "priority", "probability", "age", "drawn"):
        grid.add_column(heading, justify="right", no_wrap=True)
    grid.add_column("row", ratio=1, no_wrap=is_short)
    for rank, key in enumerate(largest.row_keys[:count].tolist()):
        as_text = row_line if is_short else row_text
        grid.add_row(
            str(rank + 1),
            str(key),
            number_text(float(largest.priorities[rank])),
            number_text(float(largest.probabilities[rank])),
            duration_text(float(largest.ages_s[rank])),
            count_text(int(largest.times_sampled[rank])),
            as_text(rows, place[key], (FAINT, "")) if key in place else Text("gone meanwhile", FAINT),
        )
    return grid
