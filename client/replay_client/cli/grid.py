"""Lists without borders, as most commands show them."""

from __future__ import annotations

from typing import Literal

from rich import box
from rich.table import Table

ACCENT = "cyan"
"""Color of names."""
FAINT = "dim"
"""Style of what matters less."""


def grid_of(*headings: str) -> Table:
    """Create a list with these headings and no rows; ``>`` in front of a heading right-aligns its column."""
    grid = Table(box=box.SIMPLE_HEAD, header_style="bold", show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for place, heading in enumerate(headings):
        justify: Literal["left", "right"] = "right" if heading.startswith(">") else "left"
        # In narrow terminals, wrap long text (names, and lists in the last column) before truncating numbers.
        is_short = justify == "right" or 0 < place < len(headings) - 1
        grid.add_column(heading.removeprefix(">"), justify=justify, no_wrap=is_short, overflow="fold")
    return grid
