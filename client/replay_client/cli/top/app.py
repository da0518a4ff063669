"""The screens of `replay top`; textual draws them.

    seen = polls(client.stats, interval_s)
    Top(next(seen), seen, inspect, "localhost:50051").run()

A thread fetches statistics and posts them to the app. The app shows them on its current screen.
"""

from __future__ import annotations

import io
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar

from rich.console import Console, Group
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from replay_client.cli.formats import count_text, printable_text
from replay_client.cli.inspect_view import Inspected, inspect_screen
from replay_client.cli.lists import NARROW, away_text, method_figures, server_line, shard_figures
from replay_client.cli.table_view import table_view, wait_text
from replay_client.cli.text_plot import sparkline
from replay_client.cli.top.history import History
from replay_client.cli.top.table_list import TableList
from replay_client.cli.watch import Problem
from replay_client.errors import ReplayError
from replay_client.results.stats import Stats

_MOST_WAITS = 4
"""Maximum lines about waiting calls on the screen of all tables."""
_LABEL_WIDTH, _RATE_WIDTH = 10, 9
"""Widths of a rate's name and of its value, which are beside the sparkline."""
_LINES_BESIDE_BARS = 20
"""Lines of a table's screen above and below the histogram, not counting lines about waits."""
_LEAST_BARS = 4


class Polled(Message):
    """New statistics or rows, or the reason why there are none."""

    def __init__(self, seen: Stats | Inspected | Problem) -> None:
        """Hold what was seen."""
        super().__init__()
        self.seen = seen


class View(Screen[None]):
    """A screen with a line about the server and lines about problem; subclasses show statistics below them."""

    def compose(self) -> ComposeResult:
        """Lay the screen out."""
        yield Static(id="server")
        yield Static(id="problem")
        yield from self.content()
        yield Footer()

    @abstractmethod
    def content(self) -> ComposeResult:
        """Lay out what is below the lines about the server and problem."""

    @abstractmethod
    def show(self, stats: Stats, history: History) -> None:
        """Show statistics."""

    def on_screen_resume(self) -> None:
        """Show what the app has seen while this screen was covered."""
        self.refresh_view()

    @property
    def top(self) -> Top:
        """The app."""
        assert isinstance(self.app, Top)
        return self.app

    def refresh_view(self) -> None:
        """Show what the app saw last, unless this screen is covered or the app is ending."""
        top = self.top
        if not (self.is_current and top.is_running):
            return
        line = server_line(top.stats, top.address, top.history.cpu_share)
        self.query_one("#server", Static).update(line)
        lines = list(away_text(top.stats))
        if top.problem is not None:
            lines.insert(0, Text(printable_text(f"no statistics: {top.problem}"), "red"))
        problem = self.query_one("#problem", Static)
        problem.update(Text("\n").join(lines))
        problem.display = bool(lines)
        self.show(top.stats, top.history)


class Overview(View):
    """All tables, who waits, and the latencies of all methods."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "Sort by next column"),
        Binding("r", "reverse", "Reverse"),
    ]

    def content(self) -> ComposeResult:
        """Lay out tables, waits and methods."""
        yield TableList()
        yield Static(id="waits")
        yield VerticalScroll(Static(id="methods"), can_focus=False)

    def show(self, stats: Stats, history: History) -> None:
        """Show statistics of all tables."""
        self.query_one(TableList).show(stats.tables, history.tables)
        waits = [(table.name, wait) for table in stats.tables.values() for wait in table.waits]
        lines = [wait_text(wait, name) for name, wait in waits[:_MOST_WAITS]]
        if len(waits) > _MOST_WAITS:
            lines.append(Text(f"{len(waits) - _MOST_WAITS} more lines of waiting calls", "dim"))
        self.query_one("#waits", Static).update(Text("\n").join(lines))
        self.query_one("#waits").display = bool(lines)
        recent = [method for method in stats.server.methods.values() if method.calls_per_s or method.active]
        recent.sort(key=lambda method: -method.calls_per_s)
        self.query_one("#methods", Static).update(method_figures(recent))

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.query_one(TableList).sort_by_next()

    def action_reverse(self) -> None:
        """Reverse the order."""
        self.query_one(TableList).reverse()

    def on_data_table_row_selected(self, selected: DataTable.RowSelected) -> None:
        """Open the screen of the selected table."""
        if selected.row_key.value is not None:
            self.app.push_screen(OneTable(selected.row_key.value))


class OneTable(View):
    """One table: its rates, who waits, its figures and distributions."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("i", "inspect", "Inspect rows"),
        Binding("escape", "app.pop_screen", "Back"),
    ]

    def __init__(self, table: str) -> None:
        """Show the table of this name."""
        super().__init__()
        self._table = table

    def action_inspect(self) -> None:
        """Open the screen with the distribution of the table's rows."""
        self.app.push_screen(TableRows(self._table))

    def content(self) -> ComposeResult:
        """Lay out name, rates and figures."""
        yield Static(Text(printable_text(self._table), "bold cyan"), id="name")
        yield Static(id="rates")
        yield VerticalScroll(Static(id="figures"))

    def show(self, stats: Stats, history: History) -> None:
        """Show statistics of the table."""
        table = stats.tables.get(self._table)
        if table is None:
            self.query_one("#rates", Static).update("")
            self.query_one("#figures", Static).update(Text("there is no such table any more", "yellow"))
            return
        rates, of_table = table.rates, history.tables[self._table]
        shown = (
            ("inserted", rates.inserted_per_s, of_table.inserted),
            ("drawn", rates.sampled_per_s, of_table.drawn),
            ("updated", rates.updated_per_s, of_table.updated),
        )
        width = self.app.size.width - _LABEL_WIDTH - _RATE_WIDTH - 1
        lines = [
            Text.assemble(
                (name.ljust(_LABEL_WIDTH), "dim"),
                f"{count_text(per_s)}/s".rjust(_RATE_WIDTH),
                " ",
                (sparkline(past, width), "cyan"),
            )
            for name, per_s, past in shown
        ]
        self.query_one("#rates", Static).update(Text("\n").join(lines))
        bars = max(_LEAST_BARS, self.app.size.height - _LINES_BESIDE_BARS - 2 * len(table.waits))
        shards = shard_figures(table, stats.shards)
        view = table_view(table, bars, is_narrow=self.app.size.width < NARROW)
        self.query_one("#figures", Static).update(Group(*shards, view))


class TableRows(View):
    """The distribution of one table's rows. The app inspects the table as long as this screen exists."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "app.pop_screen", "Back")]

    def __init__(self, table: str) -> None:
        """Show the rows of the table of this name."""
        super().__init__()
        self._table = table
        self._inspected: Inspected | None = None

    def saw(self, inspected: Inspected) -> None:
        """Keep an inspection of this table; ignore a late one of the table that was shown before."""
        if inspected.inspection.table.name == self._table:
            self._inspected = inspected

    def on_mount(self) -> None:
        """Have the app inspect the table."""
        self.top.inspecting = self._table

    def on_unmount(self) -> None:
        """Have the app inspect no table."""
        self.top.inspecting = None

    def content(self) -> ComposeResult:
        """Lay out the distribution."""
        yield Static(id="rows")

    def show(self, stats: Stats, history: History) -> None:
        """Show the distribution, fitted to the screen."""
        view = self.query_one("#rows", Static)
        if self._inspected is None:
            view.update(Text(f"reading the priorities of {printable_text(self._table)}", "dim"))
        else:
            console = Console(width=view.size.width, height=view.size.height, file=io.StringIO())
            view.update(inspect_screen(console, self._inspected, ""))


class Top(App[None]):
    """The app."""

    CSS = """
    #server, #problem, #name, #rates, #waits { height: auto; }
    TableList { height: 1fr; scrollbar-size-vertical: 1; }
    Overview VerticalScroll { height: auto; max-height: 8; scrollbar-size-vertical: 1; }
    OneTable VerticalScroll { height: 1fr; scrollbar-size-vertical: 1; }
    #rows { height: 1fr; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(
        self, first: Stats, later: Iterator[Stats | Problem], inspect: Callable[[str], Inspected], address: str
    ) -> None:
        """Show ``first``, then each of ``later``, for which a background thread waits.

        This thread calls ``inspect`` to inspect the table with the given name; it may raise `ReplayError`.
        """
        super().__init__()
        self.address = address
        self.stats = first
        self.problem: Problem | None = None
        self.history = History()
        self.history.add(first)
        self.inspecting: str | None = None
        """Name of the table to inspect."""
        self._later = later
        self._inspect = inspect
        self._ended = threading.Event()

    def on_mount(self) -> None:
        """Start to fetch statistics."""
        self.push_screen(Overview())
        threading.Thread(target=self._fetch, name="statistics", daemon=True).start()

    def on_unmount(self) -> None:
        """Stop fetching statistics."""
        self._ended.set()

    def on_polled(self, polled: Polled) -> None:
        """Show what was seen."""
        self.problem = polled.seen if isinstance(polled.seen, Problem) else None
        if isinstance(polled.seen, Stats):
            self.stats = polled.seen
            self.history.add(polled.seen)
        for screen in self.screen_stack[-1:]:  # there is none when the program ends
            if isinstance(polled.seen, Inspected) and isinstance(screen, TableRows):
                screen.saw(polled.seen)
            if isinstance(screen, View):
                # Use the screen's own queue: the screen takes messages from it only after it has laid out its widgets.
                screen.call_later(screen.refresh_view)

    def _fetch(self) -> None:
        try:
            self._fetch_all()
        except Exception as error:  # nothing new will come, and the screen shall not look as if all were well
            self.post_message(Polled(Problem(f"no statistics any more, start again: {error!r}", None)))

    def _fetch_all(self) -> None:
        for seen in self._later:
            if self._ended.is_set():
                return
            self.post_message(Polled(seen))
            if isinstance(seen, Stats) and self.inspecting is not None:
                try:
                    self.post_message(Polled(self._inspect(self.inspecting)))
                except ReplayError as error:
                    self.post_message(Polled(Problem(error.message, None)))
