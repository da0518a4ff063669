"""Converts code and tables in docstrings from Markdown, which this project uses, to reStructuredText for Sphinx."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

CODE: Final = "    "
_TABLE: Final = "|"


def process(app: object, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Handle Sphinx's event ``autodoc-process-docstring``: convert the docstring of a module in place."""
    if what == "module":
        lines[:] = as_restructured_text(lines)


def as_restructured_text(lines: Sequence[str]) -> Iterator[str]:
    """Mark indented paragraphs as code, and convert tables."""
    previous = ""
    for is_blank, group in groupby(lines, lambda line: not line):
        paragraph = list(group)
        if is_blank:
            yield ""
            continue
        if paragraph[0].startswith(_TABLE):
            yield from _table(paragraph)
        elif paragraph[0].startswith(CODE):
            yield from [] if previous.startswith(CODE) else [".. code-block:: python", ""]
            yield from paragraph
        else:
            yield from paragraph
        previous = paragraph[0]


def _table(rows: Sequence[str]) -> Iterator[str]:
    yield from (".. list-table::", "   :header-rows: 1", "")
    for row in rows:
        cells = [cell.strip() for cell in row.strip(_TABLE).split(_TABLE)]
        if not set("".join(cells)) <= set("-:"):
            yield from (f"   {'*' if index == 0 else ' '} - {cell}" for index, cell in enumerate(cells))
