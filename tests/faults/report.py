"""Figures of a run, written into a document between two marks."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path


def document_with(name: str) -> Callable[[str], Path]:
    """Reads a flag that names a document, and refuses one without the section of a run before the run begins."""

    def document(text: str) -> Path:
        path = Path(text)
        try:
            found = _section(name).search(path.read_text("utf-8"))
        except OSError as error:
            raise ArgumentTypeError(f"{path}: expected a document to write to, got: {error.strerror}") from error
        if found is None:
            raise ArgumentTypeError(_no_marks(path, name))
        return path

    return document


def at_least(least: float) -> Callable[[str], float]:
    """Reads a flag that says how long or how often, and refuses what leaves nothing to report."""

    def number(text: str) -> float:
        value = float(text)
        if not value >= least:
            raise ArgumentTypeError(f"expected at least {least:g}, got {text}")
        return value

    return number


def write_section(document: Path, name: str, heads: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Put a table in place of what stands between ``<!-- name -->`` and ``<!-- /name -->``.

    Raises:
        ValueError: if the document has no such marks.
    """
    rule = ("---", *("---:" for _ in heads[1:]))
    rows = "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *lines))
    text, found = _section(name).subn(lambda marks: f"{marks[1]}{rows}\n{marks[2]}", document.read_text("utf-8"))
    if not found:
        raise ValueError(_no_marks(document, name))
    document.write_text(text, "utf-8")


def _section(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)


def _no_marks(document: Path, name: str) -> str:
    return f"{document}: expected the marks <!-- {name} --> and <!-- /{name} -->, found none"
