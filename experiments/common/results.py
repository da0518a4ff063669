"""Raw results as CSV: appended run by run, and read back when the command is started again.

Beside them lies what they were measured with, so that results of other settings never get mixed in.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

R = TypeVar("R")


class ResultsError(RuntimeError):
    """The results that are there cannot be gone on with."""


class ResultFile(Generic[R]):
    """Results of one type, one in a line."""

    def __init__(
        self,
        path: Path,
        fields: Iterable[str],
        parse: Callable[[Mapping[str, str]], R],
        to_row: Callable[[R], Mapping[str, object]],
    ) -> None:
        """Use a file, which is made with the first result.

        Args:
            path: of the file.
            fields: names of the columns.
            parse: makes a result of a line's texts by column.
            to_row: the values of a result by column.
        """
        self.path = path
        self._fields = list(fields)
        self._parse = parse
        self._to_row = to_row

    def read(self) -> list[R]:
        """All results, oldest first. A last line that was not written to its end is cut off.

        Raises:
            ResultsError: the file is not one of these.
        """
        if not self.path.exists():
            return []
        text = self.path.read_text("utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            os.truncate(self.path, len(whole.encode("utf-8")))
        if not whole:
            return []
        reader = csv.DictReader(io.StringIO(whole))
        if reader.fieldnames != self._fields:
            raise ResultsError(
                f"expected the columns {', '.join(self._fields)} in {self.path}, got "
                f"{', '.join(reader.fieldnames or ())}; move the file, or choose another --out"
            )
        try:
            return [self._parse(row) for row in reader]
        except (KeyError, TypeError, ValueError) as error:
            raise ResultsError(f"line {reader.line_num} of {self.path} cannot be read: {error}") from error

    def append(self, results: Iterable[R]) -> None:
        """Add results, all in one write, so that a command that is killed leaves all of them or none."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self._fields, lineterminator="\n")
        if not self.path.exists() or not self.path.stat().st_size:
            writer.writeheader()
        writer.writerows(self._to_row(result) for result in results)
        with self.path.open("ab", buffering=0) as file:
            file.write(text.getvalue().encode("utf-8"))


def hold_to(path: Path, conditions: Mapping[str, Any]) -> None:
    """Write down under which conditions results are measured, or check that they are the same as before.

    Args:
        path: JSON file beside the results.
        conditions: whatever results depend on.

    Raises:
        ResultsError: earlier results were measured under others.
    """
    wanted = json.loads(json.dumps(conditions, allow_nan=False))
    if not path.exists():
        path.write_text(json.dumps(wanted, indent=2, allow_nan=False) + "\n", "utf-8")
        return
    found = json.loads(path.read_text("utf-8"))
    differing = [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)]
    if differing:
        name = differing[0]
        raise ResultsError(
            f"{path.parent} has results with {name} {found.get(name)!r}, expected {wanted.get(name)!r}: "
            "choose another --out, or the earlier settings"
        )
