"""Rows as a mapping of columns: the base of batches, tensor batches and rows read by key.

    dict(batch)             # {"obs/camera": array, "obs/speed": array, "action": array}
    batch["obs"]            # {"camera": array, "speed": array}
    table.insert(rows)      # into another table

Iterating, `len` and `items()` use the full names of columns. ``[]``, `get` and ``in`` also accept the name of a nested
observation, like pandas with multi-level columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from replay_proto.schema import SEPARATOR

T_co = TypeVar("T_co", covariant=True)


class Columns(Mapping[str, T_co]):
    """Columns of some rows by name.

    A column may have any name, even that of an attribute: ``[]`` always finds it. Objects compare by identity, because
    ``==`` on arrays is elementwise.
    """

    row_keys: NDArray[np.int64]
    """int64[n]: key of each row."""
    columns: Mapping[str, T_co]
    """By column, in the order of the schema: ``dtype[n, *shape]``."""

    @property
    def batch_size(self) -> int:
        """Number of rows; `len` counts the columns."""
        return len(self.row_keys)

    def __getitem__(self, name: str) -> Any:
        """Return a column, or a dict of the parts of a nested observation.

        Raises:
            KeyError: there is no such column.
        """
        column = self.columns.get(name)
        return self._nested(name) if column is None else column

    def __iter__(self) -> Iterator[str]:
        """The names of the columns, in the order of the schema."""
        return iter(self.columns)

    def __len__(self) -> int:
        """Number of columns."""
        return len(self.columns)

    def __eq__(self, other: object) -> bool:
        """Compare by identity; to compare values, compare columns."""
        return self is other

    def __hash__(self) -> int:
        """Hash by identity."""
        return object.__hash__(self)

    def __repr__(self) -> str:
        """Show the number of rows and the columns."""
        columns = ", ".join(f"{name}: {_described(column)}" for name, column in self.columns.items())
        return f"<{type(self).__name__} of {self.batch_size} rows, {columns}>"

    def _nested(self, name: str) -> dict[str, Any]:
        prefix = f"{name}{SEPARATOR}"
        nested: dict[str, Any] = {}
        for path, column in self.columns.items():
            if path.startswith(prefix):
                *outer, last = path[len(prefix) :].split(SEPARATOR)
                place = nested
                for part in outer:
                    place = place.setdefault(part, {})
                place[last] = column
        if not nested:
            raise KeyError(f"{name}; the columns are {', '.join(self.columns)}")
        return nested


BatchOrKeys: TypeAlias = Columns[Any] | ArrayLike
"""A batch (or rows, or tensors of one), or int64[n]: keys of rows."""


def _described(column: Any) -> str:
    """Dtype and shape, such as ``float32[256,4]``, of any kind of array."""
    dtype = str(getattr(column, "dtype", type(column).__name__)).removeprefix("torch.")
    return f"{dtype}[{','.join(map(str, getattr(column, 'shape', ())))}]"
