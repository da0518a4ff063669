"""Words that pages, docstrings, comments and messages do not have, because there are plainer ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.pages import PAGES
from tests.packaging.project import PACKAGES, ROOT

AVOIDED = re.compile(
    r"\b(mend(s|ed|ing)?|troubles?|whoever|anew|besides|hence|go(es)? on|lies? in|looks? at (it|them) again)\b", re.I
)
"""Those that CONTRIBUTING.md lists."""
TEXTS = [
    *PAGES,
    *(ROOT / name for name in ("SECURITY.md", "CODE_OF_CONDUCT.md")),
    ROOT / "proto" / "replay" / "v1" / "replay.proto",
    *(path for root in PACKAGES.values() for path in sorted(root.rglob("*.py")) if "_pb2" not in path.name),
]


def test_the_words_are_those_of_the_contributors_page() -> None:
    page = ROOT.joinpath("CONTRIBUTING.md").read_text("utf-8")
    listed = page.partition("| instead of | write |")[2].partition("\n\n")[0]
    for word in ("mend", "trouble", "whoever", "anew", "besides", "hence", "goes on", "lies in"):
        assert f"| {word}" in listed
        assert AVOIDED.search(word)


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_text_has_plain_words(text: Path) -> None:
    lines = enumerate(text.read_text("utf-8").splitlines(), start=1)
    assert [(number, line.strip()) for number, line in lines if AVOIDED.search(line)] == []
