"""The list of tables in `replay top`: one line for each table, with sparklines, sorted by one column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from replay_client.cli.formats import count_text, printable_text, shortened_text
from replay_client.cli.table_view import fill_share
from replay_client.cli.text_plot import sparkline
from replay_client.cli.top.history import TableHistory
from replay_client.results.stats import TableStats

_LEAST_NAME, _USUAL_NAME, _MOST_NAME = 12, 16, 64
"""Minimum width of names in a narrow terminal and in others, and maximum width."""
_NUMBER = 5
"""Maximum width of a number from `count_text`."""
_MOST_SPARKS = 60
_SCROLLBAR = 1


@dataclass(frozen=True)
class _Column:
    heading: str
    value: Callable[[TableStats], Any]
    """The value that tables are sorted by."""
    text: Callable[[TableStats], str]
    past: Callable[[TableHistory], Sequence[float]] | None = None
    """What the sparkline beside the text shows, if there is one."""

    @property
    def width(self) -> int:
        """Width of the text and the space before it, not counting the sparkline.

        If the column has no sparkline, the heading and its sort mark fit, too.
        """
        return 1 + (_NUMBER if self.past else max(_NUMBER, len(self.heading) + 1))


_NAME = _Column("table", lambda table: table.name, lambda table: printable_text(table.name))
_FIGURES = (
    _Column("rows", lambda table: table.size, lambda table: count_text(table.size)),
    _Column("filled", lambda table: fill_share(table.table), lambda table: f"{fill_share(table.table):.0%}"),
    _Column(
        "inserted/s",
        lambda table: table.rates.inserted_per_s,
        lambda table: count_text(table.rates.inserted_per_s),
        lambda history: history.inserted,
    ),
    _Column(
        "drawn/s",
        lambda table: table.rates.sampled_per_s,
        lambda table: count_text(table.rates.sampled_per_s),
        lambda history: history.drawn,
    ),
    _Column("updated/s", lambda table: table.rates.updated_per_s, lambda table: count_text(table.rates.updated_per_s)),
    _Column("waiting", lambda table: table.waiting, lambda table: count_text(table.waiting)),
)
_COLUMNS = (_NAME, *_FIGURES)


class TableList(DataTable[Text]):
    """The list. Its row keys are the names of the tables."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Look into")]

    def __init__(self) -> None:
        """Start without tables, sorted by name."""
        super().__init__(cursor_type="row", cell_padding=0)
        self._tables: Mapping[str, TableStats] = {}
        self._histories: Mapping[str, TableHistory] = {}
        self._sorted_by = _NAME
        self._is_descending = False

    def show(self, tables: Mapping[str, TableStats], histories: Mapping[str, TableHistory]) -> None:
        """Show tables and their recent rates; the cursor stays on its table."""
        self._tables, self._histories = tables, histories
        self._fill()

    def sort_by_next(self) -> None:
        """Sort by the next column to the right, wrapping around to the first."""
        self._sort_by(_COLUMNS[(_COLUMNS.index(self._sorted_by) + 1) % len(_COLUMNS)])

    def reverse(self) -> None:
        """Reverse the order."""
        self._is_descending = not self._is_descending
        self._fill()

    def on_data_table_header_selected(self, selected: DataTable.HeaderSelected) -> None:
        """Sort by the column whose heading was clicked. If it is the sort column already, reverse the order."""
        column = _COLUMNS[selected.column_index]
        self.reverse() if column is self._sorted_by else self._sort_by(column)

    def on_resize(self) -> None:
        """Fit names and sparklines into the new width."""
        self._fill()

    def _sort_by(self, column: _Column) -> None:
        self._sorted_by, self._is_descending = column, column is not _NAME
        self._fill()

    def _fill(self) -> None:
        selected, scrolled = self._selected, self.scroll_y
        name_width, sparks = self._widths()
        self.clear(columns=True)
        for column in _COLUMNS:
            width = name_width if column is _NAME else column.width + (1 + sparks if column.past else 0)
            self.add_column(self._heading(column, width), width=width, key=column.heading)
        names = sorted(self._tables)
        names.sort(key=lambda name: self._sorted_by.value(self._tables[name]), reverse=self._is_descending)
        for name in names:
            self.add_row(*self._cells(name, name_width, sparks), key=name)
        self.move_cursor(row=names.index(selected) if selected in names else 0, scroll=False)
        self.scroll_to(y=scrolled, animate=False)

    @property
    def _selected(self) -> str | None:
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value if self.row_count else None

    def _widths(self) -> tuple[int, int]:
        """Return the widths of names and of sparklines."""
        room = self.size.width - _SCROLLBAR - sum(column.width for column in _FIGURES)
        with_sparks = [column for column in _FIGURES if column.past]
        longest = max((len(name) for name in self._tables), default=0)
        usual = min(_USUAL_NAME, room - len(with_sparks))
        name_width = max(_LEAST_NAME, usual, min(longest, _MOST_NAME, room // 3))
        return name_width, max(0, min(_MOST_SPARKS, (room - name_width) // len(with_sparks) - 1))

    def _heading(self, column: _Column, width: int) -> Text:
        mark = "" if column is not self._sorted_by else "▼" if self._is_descending else "▲"
        shown = Text(column.heading)
        shown.truncate(width - 1 - len(mark), overflow="ellipsis")
        heading = f"{shown}{mark}"
        return Text(heading if column is _NAME else f" {heading}" if column.past else heading.rjust(column.width))

    def _cells(self, name: str, name_width: int, sparks: int) -> Iterator[Text]:
        table, history = self._tables[name], self._histories[name]
        yield Text(shortened_text(_NAME.text(table), name_width), "bold cyan")
        for column in _FIGURES:
            cell = Text(column.text(table).rjust(column.width))
            if column.past:
                cell.append(f" {sparkline(column.past(history), sparks)}", "cyan")
            if column.heading == "waiting" and table.waiting:
                cell.stylize("yellow")
            yield cell
