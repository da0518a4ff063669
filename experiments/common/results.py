"""Stores raw results in a CSV file, to which each run is appended. A restarted experiment reads them again.

A separate file records the conditions, so that results with different settings are never mixed.
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
    """New results cannot be added to the existing ones."""


class ResultFile(Generic[R]):
    """Results of one type, one per line."""

    def __init__(
        self,
        path: Path,
        fields: Iterable[str],
        parse: Callable[[Mapping[str, str]], R],
        to_row: Callable[[R], Mapping[str, object]],
    ) -> None:
        """Use a file. It is created when the first result is appended.

        Args:
            path: path of the file.
            fields: names of the columns.
            parse: creates a result from a line's fields, by column.
            to_row: returns the values of a result, by column.
        """
        self.path = path
        self._fields = list(fields)
        self._parse = parse
        self._to_row = to_row

    def read(self) -> list[R]:
        """Return all results, oldest first; remove an incomplete last line from the file.

        Raises:
            ResultsError: the file has another format.
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
        """Append results in a single write, so that a killed command has written all of them or none."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self._fields, lineterminator="\n")
        if not self.path.exists() or not self.path.stat().st_size:
            writer.writeheader()
        writer.writerows(self._to_row(result) for result in results)
        with self.path.open("ab", buffering=0) as file:
            file.write(text.getvalue().encode("utf-8"))


def hold_to(path: Path, conditions: Mapping[str, Any]) -> None:
    """Record the conditions of the results, or check that they are unchanged.

    Args:
        path: JSON file next to the results.
        conditions: everything that results depend on.

    Raises:
        ResultsError: earlier results have other conditions.
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
