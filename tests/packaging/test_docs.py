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
from tests.packaging.project import ROOT
from tests.support.deadlines import PATIENCE_S

SLOW = {"README.md", "integrations.md", "many-actors.md", "security.md", "trainer.md", "tutorial.md"}
"""Pages that take long, because they train or load many libraries; `make try-docs` runs them."""
FAILING = "```bash\nreplay tables --server localhost:1\n```\n"


@cache
def is_namespace_allowed() -> bool:
    return subprocess.run([*namespaces(), "true"], capture_output=True, check=False).returncode == 0


def command_of(module: str, *arguments: str) -> list[str]:
    """A command that runs a module in a network of its own; skips the test if this machine does not support it."""
    if not is_namespace_allowed():
        pytest.skip("no network of its own can be made here")
    return [*namespaces(), sys.executable, "-m", module, *arguments]


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
