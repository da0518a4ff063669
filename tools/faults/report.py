"""Writes the results of a run into a document between two marks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path


def document_with(name: str) -> Callable[[object, Path | None], None]:
    """Return a validator that rejects documents without a section for the run, before the run starts."""

    def check(_: object, path: Path | None) -> None:
        if path is None:
            return
        try:
            found = _section(name).search(path.read_text("utf-8"))
        except OSError as error:
            raise ValueError(f"{path}: expected a document to write to, got: {error.strerror}") from error
        if found is None:
            raise ValueError(_no_marks(path, name))

    return check


def write_section(document: Path, name: str, heads: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Replace the text between ``<!-- name -->`` and ``<!-- /name -->`` with a table.

    Raises:
        ValueError: the document has no such marks.
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
