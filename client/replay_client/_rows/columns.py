"""A mapping of columns: the base class of batches, tensor batches and rows read by key.

    dict(batch)             # {"obs/camera": array, "obs/speed": array, "action": array}
    batch["obs"]            # {"camera": array, "speed": array}
    other.insert(batch)     # insert the rows into another table

Iteration and `items()` use the full names of columns. ``[]``, `get` and ``in`` also accept the name of a nested
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
    """Columns of rows, by name.

    A column may have any name, even the name of an attribute, because ``[]`` looks up only columns. Objects compare by
    identity, because ``==`` on arrays is elementwise.
    """

    row_keys: NDArray[np.int64]
    """int64[n]: key of each row."""
    columns: Mapping[str, T_co]
    """Arrays by column name, in the order of the schema: ``dtype[n, *shape]``."""

    @property
    def batch_size(self) -> int:
        """Number of rows."""
        return len(self.row_keys)

    def __getitem__(self, name: str) -> Any:
        """Return a column, or a dict of the parts of a nested observation.

        Raises:
            KeyError: there is no such column.
        """
        column = self.columns.get(name)
        return self._nested(name) if column is None else column

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        """Number of columns; `batch_size` counts the rows."""
        return len(self.columns)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        columns = "".join(f", {name}: {_described(column)}" for name, column in self.columns.items())
        return f"<{type(self).__name__} of {self.batch_size} rows{columns}>"

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


class MixedRows(Columns[T_co]):
    """Rows of several tables, one table after another. Their keys alone do not identify them."""

    tables: NDArray[np.int64]
    """int64[n]: number of each row's table, from 0, in the order of the sampler."""


BatchOrKeys: TypeAlias = Columns[Any] | ArrayLike
"""A batch, rows, a batch of tensors, or the keys of rows as int64[n]."""


def _described(column: Any) -> str:
    """Describe any kind of array by dtype and shape, such as ``float32[256,4]``."""
    dtype = str(getattr(column, "dtype", type(column).__name__)).removeprefix("torch.")
    return f"{dtype}[{','.join(map(str, getattr(column, 'shape', ())))}]"
