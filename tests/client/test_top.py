"""`replay top`: driven by keys, over the statistics of a real server."""

from __future__ import annotations

import asyncio
import dataclasses
import html
import io
import os
import pty
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest
from replay_client import Column, ReplayClient, ReplayError, Table, TableNotFoundError
from replay_client._shards.merged import merged_stats
from replay_client.cli.formats import count_text, printable_text, shortened_text
from replay_client.cli.inspect_view import Inspected
from replay_client.cli.table_view import fill_share
from replay_client.cli.text_plot import sparkline
from replay_client.cli.top.app import OneTable, Overview, Polled, TableRows, Top
from replay_client.cli.top.history import History
from replay_client.cli.top.table_list import TableList
from replay_client.cli.watch import Problem, polls
from replay_client.results.shards import Shard, ShardMap
from replay_client.results.stats import Stats, TableStats
from replay_proto.v1 import replay_pb2
from rich.console import Console
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.widgets import Static

from tests.client.numbered import rows
from tests.client.test_cli import COMMAND, environment, run
from tests.support.caller import Caller
from tests.support.deadlines import PATIENCE_S, wait_until
from tests.support.server_process import ServerProcess

NewTable = Callable[..., Table]
Steps = Callable[[Pilot[None]], Awaitable[None]]
NAMES = ("top-first", "top-second", "top-a-name-that-is-longer-than-there-is-room-for")


def refuse(name: str) -> Inspected:
    raise TableNotFoundError(f"there is no table {name!r}")


class Feed:
    """Statistics for the app, put in by a test."""

    def __init__(self, first: Stats, inspect: Callable[[str], Inspected] = refuse) -> None:
        self.first = first
        self._inspect = inspect
        self._later: queue.Queue[Stats | Problem | None] = queue.Queue()

    def put(self, seen: Stats | Problem) -> None:
        self._later.put(seen)

    def drive(self, steps: Steps, width: int = 80, height: int = 24) -> None:
        """Run the app in a terminal of this size."""
        run_app(Top(self.first, iter(self._later.get, None), self._inspect, "here:50051"), steps, width, height)
        self._later.put(None)


def run_app(top: Top, steps: Steps, width: int = 80, height: int = 24) -> None:
    async def drive() -> None:
        async with top.run_test(size=(width, height)) as pilot:
            await pilot.pause()
            await steps(pilot)

    asyncio.run(drive())


async def until(pilot: Pilot[None], is_so: Callable[[], bool], what: str) -> None:
    """Wait until something is so on the screen."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    while not is_so():
        assert loop.time() < deadline, f"in vain: {what}"
        await pilot.pause(0.02)


def screen_of(pilot: Pilot[None]) -> list[str]:
    """The lines on the screen."""
    picture = pilot.app.export_screenshot()
    lines: dict[int, list[tuple[float, str]]] = {}
    for x, line, text in re.findall(r'<text [^>]*x="([\d.]+)"[^>]*-line-(\d+)\)"[^>]*>([^<]*)</text>', picture):
        lines.setdefault(int(line), []).append((float(x), html.unescape(text).replace("\xa0", " ")))
    return ["".join(text for _, text in sorted(parts)) for _, parts in sorted(lines.items())]


def listed(pilot: Pilot[None]) -> list[str]:
    """Names of the tables, from top to bottom."""
    return [str(row.key.value) for row in pilot.app.screen.query_one(TableList).ordered_rows]


def text_of(pilot: Pilot[None], selector: str) -> str:
    return str(pilot.app.screen.query_one(selector, Static).content)


@pytest.fixture
def answer(server: ServerProcess, new_table: NewTable) -> replay_pb2.StatsResponse:
    """Statistics of three tables of different sizes, and of nothing else on the server."""
    for place, name in enumerate(NAMES):
        table = new_table(name=name, capacity=(40, 1000, 100_000)[place])
        table.insert(rows(range((30, 7, 11_000)[place])))
        table.sample((4, 900, 50)[place], beta=0.4)
    with Caller(server.address) as caller:
        seen: replay_pb2.StatsResponse = caller.stub.Stats(replay_pb2.StatsRequest())
    methods = [method for method in seen.server.methods if method.method in ("CreateTable", "Insert", "Sample")]
    tables = [table for table in seen.tables if table.table.config.name in NAMES]
    del seen.server.methods[:], seen.tables[:]
    seen.server.methods.extend(methods)
    seen.tables.extend(sorted(tables, key=lambda table: NAMES.index(table.table.config.name)))
    return seen


@pytest.fixture
def stats(answer: replay_pb2.StatsResponse) -> Stats:
    """The same as a client returns them."""
    return Stats.from_proto(answer)


def test_the_screen_shows_what_stats_says(stats: Stats) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        table_list = pilot.app.screen.query_one(TableList)
        for name, table in stats.tables.items():
            cells = [cell.plain.split() for cell in table_list.get_row(name)]
            shortened = shortened_text(name, 16)
            assert [cell[0] for cell in cells] == [
                shortened,
                count_text(table.size),
                f"{fill_share(table.table):.0%}",
                count_text(table.rates.inserted_per_s),
                count_text(table.rates.sampled_per_s),
                count_text(table.rates.updated_per_s),
                count_text(table.waiting),
            ]
        assert table_list.virtual_size.width <= 80
        lines = screen_of(pilot)
        text = "\n".join(lines)
        for name, method in stats.server.methods.items():
            (line,) = (line for line in lines if line.startswith(f"{name} "))
            assert f"{method.p50_ms:.2f}" in line
            assert f"{method.p99_ms:.2f}" in line
        assert "here:50051" in lines[0]
        for key in ("Look into", "Sort", "Reverse", "Quit"):
            assert key in text

    Feed(stats).drive(steps)


def test_tables_are_sorted_by_keys_and_by_clicks(stats: Stats) -> None:
    first, second, third = NAMES

    async def steps(pilot: Pilot[None]) -> None:
        assert listed(pilot) == [third, first, second]
        await pilot.press("s")  # by rows
        assert listed(pilot) == [third, first, second]
        await pilot.press("s")  # by what is filled
        assert listed(pilot) == [first, third, second]
        await pilot.press("r")
        assert listed(pilot) == [second, third, first]
        heading = next(line for line in screen_of(pilot) if line.startswith("table"))
        assert "filled▲" in heading
        await pilot.click(TableList, offset=(heading.index("drawn/s"), 0))
        assert listed(pilot) == sorted(NAMES, key=lambda name: -stats.tables[name].rates.sampled_per_s)
        await pilot.click(TableList, offset=(heading.index("drawn/s"), 0))
        assert listed(pilot) == sorted(NAMES, key=lambda name: stats.tables[name].rates.sampled_per_s)
        for _ in range(3):
            await pilot.press("s")
        assert listed(pilot) == [third, first, second]

    Feed(stats).drive(steps)


def test_one_looks_into_the_table_under_the_cursor_which_follows_it(stats: Stats) -> None:
    feed = Feed(stats)
    first = stats.tables[NAMES[0]]

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("s", "down")
        later = dataclasses.replace(first.table, size=50_000)
        feed.put(Stats(stats.server, {**stats.tables, NAMES[0]: dataclasses.replace(first, table=later)}))
        await until(pilot, lambda: listed(pilot)[0] == NAMES[0], "it has moved to the top")
        await pilot.press("enter")
        assert isinstance(pilot.app.screen, OneTable)
        lines = screen_of(pilot)
        assert lines[1].strip() == NAMES[0]
        text = "\n".join(lines)
        for part in ("50.0k of 40", "sum_tree", "alpha 0.6", "median", "rows by times drawn", "inserted", "Back"):
            assert part in text
        assert f"{count_text(first.rates.inserted_per_s)}/s" in text_of(pilot, "#rates")
        feed.put(Stats(stats.server, {name: stats.tables[name] for name in NAMES[1:]}))
        await until(pilot, lambda: "no such table" in text_of(pilot, "#figures"), "the table is gone")
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, Overview)
        assert listed(pilot) == [NAMES[2], NAMES[1]]
        await pilot.press("q")
        await until(pilot, lambda: not pilot.app.is_running, "the app ends")

    feed.drive(steps)


def test_rows_of_a_table_that_was_left_do_not_appear_as_those_of_another(client: ReplayClient, stats: Stats) -> None:
    def inspect(_: str) -> Inspected:
        handle = client[NAMES[1]]  # as if it had been chosen before
        inspection = handle.inspect()
        return Inspected(inspection, handle.read(inspection.largest.row_keys), 0.4)

    feed = Feed(stats, inspect)

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("enter", "i")
        assert text_of(pilot, "#rows").startswith("reading the priorities")
        feed.put(stats)
        feed.put(Problem("the inspection is over", None))
        await until(pilot, lambda: "is over" in text_of(pilot, "#problem"), "the inspection is over")
        assert text_of(pilot, "#rows").startswith("reading the priorities")

    feed.drive(steps)


def test_the_distribution_of_a_table_is_seen_anew_each_time(stats: Stats, client: ReplayClient) -> None:
    name = NAMES[2]

    def inspect(table: str) -> Inspected:
        handle = client.table(table)
        inspection = handle.inspect()
        return Inspected(inspection, handle.read(inspection.largest.row_keys), 0.4)

    feed = Feed(stats, inspect)

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("enter", "i")
        assert any("reading the priorities" in line for line in screen_of(pilot))
        feed.put(stats)
        await until(pilot, lambda: "rows by priority" in "".join(screen_of(pilot)), "it is shown")
        text = "\n".join(screen_of(pilot))
        for part in (name, "11.0k of 100k", "rows by age", "rows by times drawn", "10999", "Back"):
            assert part in text
        client.table(name).insert(rows(range(9000)))
        feed.put(stats)
        await until(pilot, lambda: "20.0k of 100k" in "".join(screen_of(pilot)), "the new rows are seen")
        client.drop_table(name)
        feed.put(stats)
        await until(pilot, lambda: "there is no table" in text_of(pilot, "#problem"), "the table is gone")
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, OneTable)
        assert pilot.app.screen.top.inspecting is None

    feed.drive(steps)


def test_who_waits_is_on_both_screens(client: ReplayClient, new_table: NewTable) -> None:
    table = new_table(name="top-awaited", min_size=500)
    table.insert(rows(range(12)))

    def learn() -> None:
        with pytest.raises(ReplayError):
            table.sample(5, beta=0.4, timeout_s=60)

    threading.Thread(target=learn, daemon=True).start()
    wait_until(lambda: bool(table.stats().waits), "the learner waits")
    seen = client.stats()
    awaited = seen.tables[table.name]

    async def steps(pilot: Pilot[None]) -> None:
        assert text_of(pilot, "#waits") == f"{table.name}: {awaited.waits[0]}"
        await pilot.press("enter")
        assert any("1 learner waits for rows: 12 of 500" in line for line in screen_of(pilot))
        assert pilot.app.screen.query_one(VerticalScroll).max_scroll_y == 0  # it fits

    Feed(Stats(seen.server, {table.name: awaited})).drive(steps)
    crowd = {f"{table.name}-{number}": awaited for number in range(30)}

    async def crowded(pilot: Pilot[None]) -> None:
        assert "26 more lines of waiting calls" in text_of(pilot, "#waits")
        assert pilot.app.screen.query_one(TableList).size.height >= 5
        assert any(line.startswith("method") for line in screen_of(pilot))

    Feed(Stats(seen.server, crowd)).drive(crowded)


@pytest.mark.parametrize(("width", "height"), [(20, 5), (60, 15), (80, 24), (200, 60)])
def test_it_fits_into_any_terminal(stats: Stats, width: int, height: int) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        for press in ("s", "enter", "escape"):
            await pilot.press(press)
            assert all(len(line.rstrip()) <= width for line in screen_of(pilot))
        names = [pilot.app.screen.query_one(TableList).get_row(name)[0].plain for name in listed(pilot)]
        assert (NAMES[2] in names) == (width == 200)
        await pilot.resize_terminal(80, 24)
        assert pilot.app.screen.query_one(TableList).virtual_size.width <= 80

    Feed(stats).drive(steps, width, height)


def test_headings_that_are_cut_are_marked_and_all_columns_are_seen_in_narrow_terminals(stats: Stats) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        (headings,) = (line for line in screen_of(pilot) if "rows" in line and "filled" in line)
        assert headings.split() == ["table▲", "rows", "filled", "inser…", "drawn…", "updated/s", "waiting"]

    Feed(stats).drive(steps, 60, 15)


def test_names_cannot_control_the_terminal(stats: Stats) -> None:
    hostile = ("\x1b[31mred", "[bold]not bold[/]", "two\nlines\r\x07", "right\u202eto left", "\x9b2J")
    tables = {
        name: dataclasses.replace(table, table=dataclasses.replace(table.table, name=name))
        for name, table in zip(hostile, [*stats.tables.values()] * 2, strict=False)
    }
    server = dataclasses.replace(stats.server, version="1\x1b]0;title\x07")

    async def steps(pilot: Pilot[None]) -> None:
        names = [row[0].plain for row in map(pilot.app.screen.query_one(TableList).get_row, listed(pilot))]
        assert sorted(names) == sorted(shortened_text(printable_text(name), 16) for name in hostile)
        await pilot.press("end", "enter")
        for text in ("\n".join(screen_of(pilot)), "".join(names)):
            assert all(letter.isprintable() or letter == "\n" for letter in text)
        assert any("[bold]not bold[/]" in name for name in map(printable_text, hostile))

    Feed(Stats(server, tables)).drive(steps)


def test_statistics_that_arrive_while_screens_come_and_go_are_no_problem(stats: Stats) -> None:
    """The thread that fetches statistics knows nothing of screens that are half laid out, or half removed."""

    async def steps(pilot: Pilot[None]) -> None:
        app = pilot.app
        for view in (Overview(), OneTable(NAMES[0]), TableRows(NAMES[0])):
            app.push_screen(view)
            app.post_message(Polled(stats))
            await pilot.pause()
            app.post_message(Polled(stats))
            await app.pop_screen()
            app.post_message(Polled(stats))
            await pilot.pause()
        app.exit()
        app.post_message(Polled(stats))

    Feed(stats).drive(steps)


def test_it_waits_while_the_server_is_away(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server()
    with ReplayClient(server.address, timeout_s=1.0) as client:
        client.create_table("awaited", columns={"x": Column("int64")}, capacity=100)
        seen = polls(client.stats, 0.05)
        first = next(seen)
        assert isinstance(first, Stats)
        top = Top(first, seen, refuse, server.address)

        async def steps(pilot: Pilot[None]) -> None:
            problem = pilot.app.screen.query_one("#problem", Static)
            assert listed(pilot) == ["awaited"]
            await until(pilot, lambda: len(top.history.tables["awaited"].inserted) > 2, "rates are recorded")
            assert not problem.display
            server.kill()
            await until(pilot, lambda: problem.display, "it says that the server is away")
            assert "server away for" in text_of(pilot, "#problem")
            assert listed(pilot) == ["awaited"]
            await asyncio.to_thread(server.restart)
            await until(pilot, lambda: not problem.display, "the server is back")
            assert listed(pilot) == []

        run_app(top, steps)


def test_what_ends_the_statistics_is_shown(stats: Stats) -> None:
    def fails() -> Iterator[Stats]:
        yield stats
        raise MemoryError

    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "no statistics any more" in text_of(pilot, "#problem"), "it is said")

    run_app(Top(stats, fails(), refuse, "here:50051"), steps)


def test_rates_are_those_between_two_statistics(stats: Stats) -> None:
    def at(uptime_s: float, inserted: int, uid: bytes = b"", cpu_s: float = 1.0) -> Stats:
        table = stats.tables[NAMES[0]]
        described = dataclasses.replace(table.table, inserted=inserted, uid=uid)
        now: TableStats = dataclasses.replace(table, table=described, sampled=2 * inserted, updated=3 * inserted)
        return Stats(dataclasses.replace(stats.server, uptime_s=uptime_s, cpu_s=cpu_s), {"one": now})

    history = History()
    for uptime_s, inserted in ((10.0, 100), (12.0, 150), (12.5, 150), (22.5, 250)):
        history.add(at(uptime_s, inserted))
    assert list(history.tables["one"].inserted) == [25.0, 0.0, 10.0]
    assert list(history.tables["one"].drawn) == [50.0, 0.0, 20.0]
    assert list(history.tables["one"].updated) == [75.0, 0.0, 30.0]
    assert history.cpu_share == pytest.approx(0.0)
    history.add(at(23.5, 300, cpu_s=1.5))
    assert history.cpu_share == pytest.approx(0.5)
    history.add(at(24.5, 5, uid=b"another"))  # the server's processor time fell: it restarted, too
    assert list(history.tables["one"].inserted) == []
    history.add(at(25.5, 7, uid=b"another"))
    assert list(history.tables["one"].inserted) == [2.0]
    history.add(at(26.5, 2, uid=b"replaced"))
    assert list(history.tables["one"].inserted) == []
    history.add(at(3.0, 50, uid=b"replaced"))
    assert list(history.tables["one"].inserted) == []
    assert history.cpu_share is None
    history.add(Stats(at(4.0, 50).server, {}))
    assert dict(history.tables) == {}


def test_a_sparkline_ends_with_the_newest_value() -> None:
    assert sparkline([0, 1, 2, 7], 6) == "  ▁▂▃█"
    assert sparkline([5, 0, 0, 0], 3) == "▁▁▁"
    assert sparkline([], 2) == "  "
    assert sparkline([1.0], 0) == ""


def test_it_needs_a_terminal_and_loads_textual_only_then(server: ServerProcess) -> None:
    done = run("top", "--server", server.address)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "replay stats --watch" in done.stderr
    code = "import sys; from replay_client.cli import app; print('textual' in sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert loaded.stdout.strip() == "False"


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    screen, inside = pty.openpty()
    yield screen, inside
    os.close(screen)


def test_it_ends_at_ctrl_c(server: ServerProcess, table: Table, terminal: tuple[int, int]) -> None:
    screen, inside = terminal
    command = [COMMAND, "top", "--server", server.address]
    process = subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, env=environment())
    os.close(inside)
    shown = bytearray()

    def has_begun() -> bool:
        shown.extend(os.read(screen, 65536))
        return table.name.encode() in shown

    wait_until(has_begun, "the table is shown")
    os.write(screen, b"\x03")
    # Read all output, because a full terminal buffer would block the program.
    try:
        while os.read(screen, 65536):
            pass
    except OSError:
        pass
    assert process.wait(PATIENCE_S) == 0


def on_several_servers(answer: replay_pb2.StatsResponse, *there: int, servers: int = 3) -> Stats:
    """The same statistics from each of these servers that are there."""
    shards = tuple(Shard(number, f"host{number}:50051", "active") for number in range(servers))
    return merged_stats(ShardMap(bytes(16), 1, shards), dict.fromkeys(there, answer))


def test_a_table_on_several_servers_is_one_with_its_shards_below(answer: replay_pb2.StatsResponse) -> None:
    whole = on_several_servers(answer, 0, 2)

    async def steps(pilot: Pilot[None]) -> None:
        assert [cell.plain.split()[0] for cell in pilot.app.screen.query_one(TableList).get_row(NAMES[0])][1] == "60"
        assert "2 servers" in screen_of(pilot)[0]
        assert "shard 1 at host1:50051 is away" in screen_of(pilot)[1]
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, OneTable), "the table is shown")
        console = Console(width=80, file=io.StringIO(), record=True)
        console.print(pilot.app.screen.query_one("#figures", Static).content)
        lines = [line.split() for line in console.export_text().splitlines() if "host" in line]
        assert [line[:3] for line in lines] == [
            ["0", "host0:50051", "active"],
            ["1", "host1:50051", "away"],
            ["2", "host2:50051", "active"],
        ]

    Feed(whole).drive(steps)


@pytest.mark.parametrize("width", [60, 80])
def test_narrow_terminals_show_fewer_figures_but_cut_none(answer: replay_pb2.StatsResponse, width: int) -> None:
    answer.server.methods[0].method = "UpdatePriorities"
    for method in answer.server.methods:
        method.calls_per_s = 1234.0
    whole = on_several_servers(answer, *range(12), servers=12)

    async def steps(pilot: Pilot[None]) -> None:
        lines = [line.split() for line in screen_of(pilot)]
        methods = lines[next(place for place, line in enumerate(lines) if line[:1] == ["method"]) :]
        assert [line[0] for line in methods if "14.8k" in line] == ["Insert", "Sample", "UpdatePriorities"]
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, OneTable), "the table is shown")
        figures = pilot.app.screen.query_one("#figures", Static)
        console = Console(width=figures.size.width, file=io.StringIO(), record=True)
        console.print(figures.content)
        shown = console.export_text()
        assert "…" not in shown
        lines = [line.split() for line in shown.splitlines() if ":50051" in line]
        assert [line[:4] for line in lines] == [[str(n), f"host{n}:50051", "active", "11.0k"] for n in range(12)]
        assert "132k of 1.20M, 11%" in shown

    Feed(whole).drive(steps, width)


def test_a_server_that_goes_away_or_comes_back_is_no_rate(answer: replay_pb2.StatsResponse) -> None:
    history = History()
    for seconds, there in enumerate([(0, 1, 2), (0, 1, 2), (0, 2), (0, 2), (0, 1, 2), (0, 1, 2)]):
        answer.server.uptime_s, answer.server.cpu_s = 100.0 + seconds, 10.0 + seconds
        history.add(on_several_servers(answer, *there))
    assert list(history.tables[NAMES[0]].inserted) == [0.0, 0.0, 0.0]
