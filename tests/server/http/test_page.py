"""The live page in a real browser: `make test-page`."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from replay_client import ReplayClient

from tests.support.access import token_entry
from tests.support.caller import Caller, LearnStream, WriteStream, make_draw, make_update
from tests.support.events import events
from tests.support.flow import rate_limiter
from tests.support.http_port import FLAGS, http_port
from tests.support.server_process import ServerProcess, free_port
from tests.support.service import ROWS, addresses, filled, start_service

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing: make test-page")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing: make test-page")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: apt-get install chromium")

StartServer = Callable[..., ServerProcess]
WIDTHS = (400, 1600)
PATIENCE_MS = 30_000
UNKNOWN = "\N{EN DASH}"
"""What the page shows for an unknown figure."""
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</h2><script>alert(1)</script>",
    "__proto__",
    "constructor",
    '" onmouseover="alert(1)',
    "\u202egnp.exe \u2066right to left",
    "x" * 128,
)
"""Names that a page must show as they are."""


class Page:
    """A page that fails the test if it logs an error, or asks another host for anything."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.problems: list[str] = []
        self._expected: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        page.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))
        page.on("request", lambda asked: None if asked.url.startswith(url) else self.problems.append(asked.url))
        page.goto(url)

    def wait(self, script: str, argument: object = None) -> None:
        """Wait until a function of JavaScript returns something true."""
        self.page.wait_for_function(script, arg=argument)

    def wait_for_fact(self, name: str, value: str, table: int = 0) -> None:
        """Wait until a table shows a fact."""
        self.wait(
            """([table, name, value]) => document.querySelectorAll("details")[table]
                ?.querySelector(`[data-fact="${name}"]`)?.textContent === value""",
            [table, name, value],
        )

    def text(self, selector: str) -> str:
        """The text of the first such element."""
        found: str = self.page.inner_text(selector)
        return found

    def number(self, selector: str) -> float:
        """The number that an element shows."""
        return float(self.text(selector).replace(",", ""))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium."""
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Page]]:
    """Opens the page of a server, and looks for problems at the end."""
    with ExitStack() as opened:
        pages: list[Page] = []

        def start(server: ServerProcess, width: int = 1600, **options: object) -> Page:
            context = browser.new_context(viewport={"width": width, "height": 900}, **options)
            opened.callback(context.close)
            pages.append(Page(context.new_page(), f"http://localhost:{http_port(server)}/"))
            return pages[-1]

        yield start
        assert [problem for page in pages for problem in page.problems] == []


OpenPage = Callable[..., Page]


def test_the_page_shows_what_stats_says_and_goes_on(
    start_server: StartServer, call: Callable[[ServerProcess], Caller], open_page: OpenPage
) -> None:
    server = start_server(*FLAGS)
    caller = call(server)
    page = open_page(server)
    page.wait("() => !document.getElementById('empty').hidden")
    table = caller.create("shown", capacity=5000)
    table.insert(range(2000))
    table.sample(300)
    table.update(range(100), [0.5] * 100)
    page.wait_for_fact("updated", "100")
    stats = table.stats()
    facts = page.page.eval_on_selector_all("dd", "all => all.map(each => [each.dataset.fact, each.textContent])")
    shown = {name: text.replace(",", "") for name, text in facts}
    assert shown.pop("reserved").split()[1] in ("kB", "MB")
    assert shown == {
        "rows": str(stats.table.size),
        "inserted": str(stats.table.inserted),
        "drawn": str(stats.sampled),
        "updated": str(stats.updated),
        "stale updates": str(stats.stale),
    }
    assert page.text("summary span") == "2,000 of 5,000 rows, sum_tree"
    # Rates fall while nothing happens: they were higher before, and will be lower afterwards.
    before, rate = table.stats().rates.inserted_per_s, page.number("[data-text=inserted_per_s]")
    assert rate >= 0.95 * table.stats().rates.inserted_per_s
    assert rate <= 3 * before
    assert page.text("[data-part=priorities] figcaption") == "Priorities 0.5 to 1, median 1"
    assert page.page.locator(".plot canvas").count() == 1
    calls = page.page.eval_on_selector_all(
        "#calls tbody tr", "rows => rows.map(row => [...row.children].map(cell => cell.textContent))"
    )
    by_name = {name: (total, errors) for name, _, _, _, _, total, errors in calls}
    for method in ("Insert", "Sample", "UpdatePriorities"):
        counted = caller.method(method)
        assert by_name[method] == (str(counted.calls), str(counted.errors))

    table.insert(range(1000))
    page.wait_for_fact("inserted", "3,000")
    table.drop()
    page.wait("() => document.querySelectorAll('details').length === 0")


def test_the_page_says_who_waits_and_who_writes(
    start_server: StartServer, call: Callable[[ServerProcess], Caller], open_page: OpenPage
) -> None:
    server = start_server(*FLAGS)
    caller = call(server)
    limited = caller.create("limited", rate_limiter=rate_limiter(10, 2.0, (10.0, 30.0)))
    limited.insert(range(7))
    started = limited.begin_sample(1, wait_s=60.0)
    busy = caller.create("z-busy")
    writer, learner = WriteStream(busy, b"0123456789abcdef"), LearnStream(busy)
    writer.write([1, 2, 3], 1)
    learner.ask(draw=make_draw(8), update=make_update([0], [1.0]))
    page = open_page(server)
    page.wait(
        "sentence => document.querySelector('[data-part=waits] li')?.textContent.startsWith(sentence)",
        "1 learner waits for rows: 7 of 10,",
    )
    gauge = page.text("[data-part=limiter]").split()
    assert gauge == ["Rate", "limiter", "difference", "14", "draws", "wait", "at", "10", "inserts", "wait", "at", "30"]
    assert page.page.eval_on_selector(".gauge div", "mark => mark.style.left") == "20%"
    rows = page.page.locator("details").nth(1).locator("[data-part=clients] tbody tr").all_inner_texts()
    assert sorted(row.split("\t")[:2] for row in rows) == [["this host", "1 learner"], ["this host", "1 writer"]]
    limited.insert(range(3))
    started.result()
    page.wait("() => document.querySelectorAll('[data-part=waits] li').length === 0")
    for stream in (writer, learner):
        stream.close()
    page.wait("() => document.querySelectorAll('details')[1].querySelector('[data-part=clients]').hidden")


MANY = 40


def test_those_of_many_tables_that_need_attention_come_first(
    start_server: StartServer, call: Callable[[ServerProcess], Caller], open_page: OpenPage
) -> None:
    server = start_server(*FLAGS)
    caller = call(server)
    tables = [caller.create(f"table-{number:02}", capacity=20) for number in range(MANY - 2)]
    for table in tables:
        table.insert(range(20))
    hungry = caller.create("v-hungry", rate_limiter=rate_limiter(10, 2.0, (10.0, 30.0)))
    full = caller.create("w-full", rate_limiter=rate_limiter(1, 1.0, (-10.0, 10.0)))
    full.insert(range(10))
    waiting: list[Any] = [hungry.begin_sample(1, wait_s=60.0), full.begin_insert([1], wait_s=60.0)]
    page = open_page(server)
    page.wait("count => document.querySelectorAll('#overview tbody tr').length === count", MANY)
    tables[17].insert(range(10))  # evicts keys 0 to 9
    tables[17].update(range(20), [1.0] * 20)
    page.wait("() => document.querySelectorAll('#overview .bad').length === 3")
    lines = page.page.locator("#overview tbody tr")
    expected = [
        ("w-full", "1 writer waits for draws: 0 of 1 samples drawn"),
        ("v-hungry", "1 learner waits for rows: 0 of 10"),
        ("table-17", "50 % of updates are stale"),
        ("table-00", UNKNOWN),
    ]
    for line, (name, problem) in zip(lines.all_inner_texts(), expected, strict=False):
        assert line.startswith(f"{name}\t{problem}")
    last = page.page.eval_on_selector("#overview tbody tr:last-child", "line => line.getBoundingClientRect().bottom")
    assert last <= 900  # the height of the window
    assert page.page.locator("details[open]").count() == 0

    button = page.page.locator("#overview button", has_text="table-17")
    button.focus()
    page.page.keyboard.press("Enter")
    page.wait("() => document.activeElement.closest('details[open]')?.querySelector('h2').textContent === 'table-17'")
    page.wait_for_fact("stale updates", "10", table=17)
    for call_ in waiting:
        call_.cancel()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_can_be_used_with_a_keyboard_and_a_screen_reader(
    start_server: StartServer, call: Callable[[ServerProcess], Caller], open_page: OpenPage, width: int, scheme: str
) -> None:
    server = start_server(*FLAGS)
    caller = call(server)
    for number in range(3):
        caller.create(f"table-{number}").insert(range(20))
    limited = caller.create("limited", rate_limiter=rate_limiter(10, 2.0, (10.0, 30.0)))
    limited.insert(range(7))
    waiting = limited.begin_sample(1, wait_s=60.0)
    page = open_page(server, width=width, color_scheme=scheme)
    page.wait("() => document.querySelectorAll('#overview .bad').length === 1")
    page.wait("() => document.querySelectorAll('.plot canvas').length === 4")
    found = axe.Axe().run(page.page)
    assert found.violations_count == 0, found.generate_report()
    waiting.cancel()


def test_the_page_survives_a_restart(
    start_server: StartServer, call: Callable[[ServerProcess], Caller], open_page: OpenPage, tmp_path: Path
) -> None:
    server = start_server("--http-port", str(free_port()), "--data-dir", str(tmp_path / "data"))
    table = call(server).create("kept")
    table.insert(range(50))
    page = open_page(server)
    page.wait_for_fact("inserted", "50")
    server.kill()
    page.wait("() => document.body.classList.contains('stale')")
    assert page.text("#connection") == "no connection to the server, trying again"
    assert page.text("[data-fact=inserted]") == "50"
    asked: list[str] = []
    page.page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    for _ in range(2):
        page.page.wait_for_event("request", lambda request: request.url.endswith("/events"))
    assert set(asked) == {"events"}  # of histories only when the server shows its tables
    assert all("ERR_" in problem for problem in page.problems)
    server.restart()
    page.wait("() => !document.body.classList.contains('stale')")
    call(server).table("kept").insert(range(10))
    page.wait_for_fact("inserted", "60")
    # The browser logs that it could not connect.
    page.problems = [problem for problem in page.problems if "ERR_" not in problem]


def test_the_page_survives_a_reply_that_is_cut_off(
    start_server: StartServer, call: Callable[[ServerProcess], Caller], open_page: OpenPage
) -> None:
    server = start_server(*FLAGS)
    call(server).create("first").insert(range(50))
    page = open_page(server)
    page.wait_for_fact("inserted", "50")
    page.page.route("**/history*", lambda asked: asked.fulfill(body='{"at_s":[1'))
    with page.page.expect_response("**/history*"):
        call(server).create("second").insert(range(60))
    page.wait_for_fact("inserted", "60", table=1)


def test_rare_points_are_joined_and_an_outage_is_not(start_server: StartServer, open_page: OpenPage) -> None:
    page = open_page(start_server(*FLAGS))
    at = [*range(0, 100, 20), 200, *range(201, 210)]
    column = page.page.evaluate(
        """async (at) => {
            const { Points } = await import("/page/charts.js");
            const points = new Points();
            for (const each of at) points.append({ at: [each], inserted: [1], drawn: [1], updated: [1] });
            return points.columns[1];
        }""",
        at,
    )
    joined, outage = [1] * 4, [None, 1]
    assert column == [1, None, *joined, *outage, *[1] * 9]


def test_a_page_that_is_shown_again_does_not_count_the_time_it_was_hidden(
    start_server: StartServer, open_page: OpenPage
) -> None:
    page = open_page(start_server(*FLAGS))
    page.page.clock.install()
    page.page.reload()
    page.wait("() => !document.getElementById('empty').hidden")
    show = """hidden => {
        Object.defineProperty(document, "hidden", {configurable: true, value: hidden});
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.page.evaluate(show, True)
    page.page.clock.run_for(60_000)
    page.page.route("**/events", lambda _: None)  # no answer yet
    page.page.evaluate(show, False)
    page.page.clock.run_for(2_000)
    assert "no news" not in page.text("#connection")
    page.page.clock.run_for(20_000)
    assert "no news for 2" in page.text("#connection")


@pytest.mark.parametrize("width", WIDTHS)
def test_hostile_names_are_text(
    start_server: StartServer, call: Callable[[ServerProcess], Caller], open_page: OpenPage, browser: Any, width: int
) -> None:
    """The server refuses most of these names for tables; the page does not rely on that."""
    server = start_server(*FLAGS)
    table = call(server).create("honest")
    table.insert(range(10))
    with events(server) as stream:
        figures = stream.next()
    (honest,) = figures["tables"]
    client = {"role": "writer", "streams": 1, "rows_per_s": 1.0, "updates_per_s": 0.0}
    figures["tables"] = [
        {
            **honest,
            "name": name,
            "backend": name,
            "waits": [name],
            "clients": [{**client, "caller": name}],
        }
        for name in HOSTILE
    ]
    others = [{"shard": number, "address": name} for number, name in enumerate(HOSTILE)]
    figures["place"] = {"shard": None, "servers": len(HOSTILE), "others": others}
    figures["checkpoints"] = [{"name": name, "taken_s": 0.0, "bytes": 1, "tables": 1} for name in HOSTILE]
    context = browser.new_context(viewport={"width": width, "height": 900})
    body = f"data: {json.dumps(figures)}\n\n"
    context.route("**/events", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    context.route("**/history?*", lambda route: route.fulfill(json=honest["points"]))
    page = Page(context.new_page(), f"http://localhost:{http_port(server)}/")
    page.wait("count => document.querySelectorAll('details').length === count", len(HOSTILE))
    for button in page.page.locator("#overview button").all():
        button.click()  # opens the card
    page.wait("count => document.querySelectorAll('[data-part=clients] td:first-child').length === count", len(HOSTILE))
    for selector in (
        *("#overview button", "#overview .problem", "summary h2", "[data-part=waits] li"),
        *("#checkpoints td:first-child", "[data-part=clients] td:first-child"),
    ):
        shown = page.page.eval_on_selector_all(selector, "all => all.map(each => each.textContent)")
        assert shown == list(HOSTILE), selector
    links = page.page.eval_on_selector_all("#place a", "all => all.map(each => each.textContent)")
    assert links == [f"shard {number} at {name}" for number, name in enumerate(HOSTILE)]
    assert page.page.evaluate("document.querySelectorAll('img, body script').length") == 0
    assert page.page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.problems == []
    context.close()


def test_a_browser_asks_for_a_token_and_names_of_tokens_are_text(
    start_server: StartServer, open_page: OpenPage, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.toml"
    token, every = "token-" + "x" * 20, ("read", "write", "admin")
    tokens.write_text(token_entry(HOSTILE[0], token, every))
    server = start_server(*FLAGS, "--tokens", str(tokens))
    credentials = grpc.composite_channel_credentials(
        grpc.local_channel_credentials(), grpc.access_token_call_credentials(token)
    )
    with Caller(server.address, credentials=credentials) as caller:
        table = caller.create("a" * 128)
        stream = WriteStream(table, b"0123456789abcdef")
        stream.write([1], 1)
        page = open_page(server, width=400, http_credentials={"username": "me", "password": token})
        page.wait_for_fact("inserted", "1")
        assert page.text("[data-part=clients] td") == f"token {HOSTILE[0]}"
        assert page.page.evaluate("document.documentElement.scrollWidth") <= 400
        assert token not in page.page.content()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_and_follows_the_color_scheme(
    start_server: StartServer, call: Callable[[ServerProcess], Caller], open_page: OpenPage, width: int, scheme: str
) -> None:
    server = start_server(*FLAGS)
    call(server).create("shown").insert(range(100))
    page = open_page(server, width=width, color_scheme=scheme)
    page.wait_for_fact("inserted", "100")
    assert page.page.evaluate("document.documentElement.scrollWidth") <= width
    color = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", color)[:3]))
    assert (brightness > 600) == (scheme == "light")
    assert (brightness < 150) == (scheme == "dark")


@pytest.mark.parametrize("width", WIDTHS)
def test_a_server_of_several_says_which_it_is_and_links_to_the_others(
    start_server: StartServer, open_page: OpenPage, width: int
) -> None:
    servers = start_service(start_server)
    with ReplayClient(addresses(servers)) as client:
        filled(client)
    page = open_page(servers[1], width=width)
    page.wait_for_fact("rows", str(ROWS[1]))
    others = [f"shard {number} at {servers[number].address}" for number in (0, 2)]
    assert page.text("#place") == f"This page shows shard 1 of 3. The others: {', '.join(others)}"
    links = page.page.eval_on_selector_all("#place a", "all => all.map(each => each.href)")
    assert links == 2 * [page.page.url.replace("localhost", "127.0.0.1")]  # the host of their addresses in the map
    assert page.page.evaluate("document.documentElement.scrollWidth") <= width
