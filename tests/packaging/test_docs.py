"""The commands and programs in the documentation run as printed; also tests the scripts that run them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from scripts.pages import PAGES, blocks_of, namespaces
from scripts.try_docs import NO_NAMESPACE
from tests.packaging.project import ROOT
from tests.support.deadlines import PATIENCE_S

SLOW = {"README.md", "integrations.md", "many-actors.md", "security.md", "trainer.md", "tutorial.md"}
"""Pages that take long, because they train or load many libraries; `make try-docs` runs them."""
RUNNING = "<!-- background: ready -->\n```bash\necho ready; sleep 60\n```\n"
FAILING = "```bash\nreplay tables --server localhost:1\n```\n"


@cache
def is_namespace_allowed() -> bool:
    return subprocess.run([*namespaces(), "true"], capture_output=True, check=False).returncode == 0


def command_of(module: str, *arguments: str) -> list[str]:
    """A command that runs a module in a network of its own; skips the test if this machine does not support it."""
    if not is_namespace_allowed():
        pytest.skip("no network of its own can be made here")
    return [*namespaces(), sys.executable, "-m", module, *arguments]


def run_pages(*pages: Path) -> subprocess.CompletedProcess[str]:
    """Run pages like a user."""
    command = command_of("scripts.pages", *map(str, pages))
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)


class ForkedPages:
    """Runs one page after another in a process that forks their programs; see `tests.support.forked_pages`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(self, page: Path) -> tuple[int, str]:
        """Run a page; return how many of its blocks did what the page says, and what is wrong with the next one."""
        if self._process is None:
            command = command_of("tests.support.forked_pages")
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(page, file=self._process.stdin, flush=True)
        count = 0
        while (line := self._process.stdout.readline()).strip():
            count += 1
        return count, "" if line else self.close()

    def close(self) -> str:
        """End the process, and return its errors."""
        if self._process is None:
            return ""
        _, errors = self._process.communicate(timeout=PATIENCE_S)
        self._process = None
        return errors


@pytest.fixture(scope="module")
def forked() -> Iterator[ForkedPages]:
    pages = ForkedPages()
    yield pages
    pages.close()


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in SLOW], ids=lambda page: page.name)
def test_a_page_runs_as_it_is_printed(forked: ForkedPages, page: Path) -> None:
    assert forked.run(page) == (len(blocks_of(page)), "")


@pytest.mark.slow
def test_the_failure_of_a_forked_command_is_noticed(forked: ForkedPages, tmp_path: Path) -> None:
    failing = tmp_path / "failing.md"
    failing.write_text(FAILING)
    count, wrong = forked.run(failing)
    assert (count, wrong.splitlines()[0]) == (0, f"{failing}:1: expected the exit status 0, got 1; it printed")


@pytest.mark.parametrize("page", [page for page in PAGES if page.name in SLOW], ids=lambda page: page.name)
def test_every_block_of_a_slow_page_says_how_it_runs(page: Path) -> None:
    assert {block.mark for block in blocks_of(page)} <= {"", "background", "file", "not run"}


def test_blocks_share_a_folder_a_network_and_variables(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- background: Serving -->\n```bash\npython -m http.server 50051\n```\n"
        "<!-- file: settings.toml -->\n```toml\nport = 50051\n```\n"
        "```bash\nexport PORT=$(sed 's/.* //' settings.toml)\n```\n"
        '```bash\npython -c "from urllib.request import urlopen as get; '
        "print(get('http://buffer:$PORT').status, 'rows')\"\n```\n"
        "<!-- output -->\n```text\n1,234 rows\n```\n"
    )
    command = [sys.executable, "-m", "scripts.try_docs", str(page)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    if done.returncode == NO_NAMESPACE:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    assert [line.split()[2:] for line in done.stdout.splitlines()] == [
        ["bash", "running"],
        ["toml", "written", "to", "settings.toml"],
        *([["bash", "done", "in", line.split()[5], "s"] for line in done.stdout.splitlines()[2:4]]),
        ["text", "as", "printed"],
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("```bash\necho before; false\n```\n", "expected the exit status 0, got 1; it printed\nbefore"),
        ("```python\nraise ValueError('why')\n```\n", "ValueError: why"),
        ("```bash\necho 3 rows\n```\n<!-- output -->\n```text\n4 lines\n```\n", "the line '4 lines'"),
        ("<!-- background: ready -->\n```bash\necho gone\n```\n", "expected 'ready'; it printed\ngone"),
        ("```toml\nport = \n```\n", "Invalid value"),
        ("```\nls\n```\n", "expected one of bash, python, text, toml, got ''"),
        ("<!-- later: never -->\n```bash\nls\n```\n", "got 'later'"),
        ("<!-- run by: README.md -->\n```bash\nreplay-server --nowhere\n```\n", "found none: replay-server --nowhere"),
    ],
)
def test_the_first_block_that_fails_is_shown_with_its_output(tmp_path: Path, content: str, said: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(RUNNING + content + "```bash\ntouch further\n```\n")
    done = run_pages(page)
    assert done.returncode == 1
    assert f"{page}:" in done.stderr
    assert said in done.stderr
    assert "further" not in done.stdout


def test_figures_are_of_the_runs_that_the_pages_name() -> None:
    claim = (ROOT / "tests" / "experiments" / "test_claim.py").read_text("utf-8")
    (seeds,) = re.findall(r"^SEEDS = (\d+)$", claim, re.MULTILINE)
    cliffwalk = (ROOT / "docs" / "trainer" / "cliffwalk.md").read_text("utf-8")
    assert f"median of {seeds} seeds" in " ".join(cliffwalk.split())
    reliability = (ROOT / "docs" / "operations" / "reliability.md").read_text("utf-8")
    (kills,) = re.findall(r"`make torture KILLS=(\d+)`", reliability)
    assert {*re.findall(r"^\| servers killed under load \| (.*) \|$", reliability, re.MULTILINE)} == {
        f"{kills} | {kills}",
        kills,
    }
