"""The documentation site."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import contract
from tests.packaging.project import PACKAGES, ROOT

PAGES = ("-t", "pages", "-b", "dummy")


def build(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs/site", *options]
    return subprocess.run([*command, ".", str(folder)], cwd=ROOT, capture_output=True, text=True, check=False)


def test_links_and_anchors_of_all_pages_exist_and_the_site_lists_all_pages(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    done = build(tmp_path, *PAGES)
    assert done.returncode == 0, done.stderr


def test_the_reference_has_each_module_that_users_import_once() -> None:
    pages = [page.read_text("utf-8") for page in (ROOT / "docs" / "site").glob("*.md")]
    modules = re.findall(r"automodule:: (\S+)", "".join(pages))
    assert sorted(set(modules)) == sorted(modules)
    client = PACKAGES["replay_client"]
    exported = (client / "__init__.py").read_text("utf-8")
    others = {file.stem for file in client.glob("[a-z]*.py") if f"from replay_client.{file.stem} " not in exported}
    assert {f"replay_client.{name}" for name in others} <= set(modules)


def test_the_protocol_is_complete_with_links_and_comments() -> None:
    text = contract.markdown()
    assert "**`rpc Sample`** ([SampleRequest](#contract-samplerequest))" in text
    assert "| 1: `table`, string |" in text
    assert "(stream [LearnRequest](#contract-learnrequest))" in text
    assert all(f"(contract-{target})=" in text for target in ("replayservice", "tableconfig", "errorreason"))
