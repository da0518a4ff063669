"""A mapping of columns: the base class of batches, tensor batches and rows read by key.

    dict(batch)             # {"obs/camera": array, "obs/speed": array, "action": array}
    batch["obs"]            # {"camera": array, "speed": array}
    other.insert(batch)     # insert the rows into another table

Iteration and `items()` use the full names of columns. ``[]``, `get` and ``in`` also accept the name of a nested
observation, like pandas with multi-level columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from replay_proto.schema import SEPARATOR
from replay_proto.steps import Steps

from replay_client.errors import InvalidArgumentError

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


def chosen_columns(
    available: Iterable[str], given: Collection[str] | None, masks: Mapping[str, str]
) -> tuple[str, ...] | None:
    """Return the names of chosen columns, in the order of the schema, or None for all columns.

    The name of a nested observation stands for all of its parts. The masks of optional columns are chosen with their
    columns; see `Schema.masks`.
    """
    if given is None:
        return None
    names = tuple(available)
    if isinstance(given, str) or not isinstance(given, Collection):
        raise InvalidArgumentError.of_field("columns", "a list of names, or None for all columns", repr(given))
    chosen: set[str] = set()
    for name in given:
        found = [each for each in names if each == name or each.startswith(f"{name}{SEPARATOR}")]
        if not found:
            raise InvalidArgumentError.of_field("columns", f"names among {', '.join(names)}", repr(name))
        chosen.update(found)
        chosen.update(masks[each] for each in found if each in masks)
    return tuple(name for name in names if name in chosen)


def chosen_of_steps(steps: Steps, given: Collection[str] | None) -> tuple[str, ...] | None:
    """Return the names of chosen columns like `chosen_columns`, for batches of a table of steps.

    A `Mask` is always chosen, because without it, nobody could tell which positions of a sequence hold a step.
    """
    names = chosen_columns(steps.sampled, given, steps.schema.masks)
    if names is None:
        return None
    return tuple(name for name in steps.sampled if name in names or name in steps.masks)
