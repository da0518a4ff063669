"""Figures of a run, written into a document between two marks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path


def write_section(document: Path, name: str, heads: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Put a table in place of what stands between ``<!-- name -->`` and ``<!-- /name -->``.

    Raises:
        ValueError: if the document has no such marks.
    """
    rule = ("---", *("---:" for _ in heads[1:]))
    rows = "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *lines))
    text, found = re.subn(
        rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)",
        lambda marks: f"{marks[1]}{rows}\n{marks[2]}",
        document.read_text("utf-8"),
        flags=re.DOTALL,
    )
    if not found:
        raise ValueError(f"{document}: expected the marks <!-- {name} --> and <!-- /{name} -->, found none")
    document.write_text(text, "utf-8")
