"""Builds the columns of a batch of a table of steps from the rows of its windows.

    expansion = Expansion(steps, steps.sampled)
    expansion.write(windows, carried, columns)      # `columns` are uninitialized arrays, as `steps.sampled` describes

Most columns are copies of stored rows, and each value is copied once, directly to its position in the batch. Positions
without a row are then set to zero. Values are copied as bytes, because the columns of a received message are not
aligned. Columns with the same layout share the indices of their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray
from replay_proto.framing import Array
from replay_proto.schema import Column
from replay_proto.steps import Discount, Item, Mask, Return, Sequences, Stack, Steps, Transitions

from replay_client._rows.copying import RowSource, copy_rows
from replay_client._rows.windows import Indices, Layout, Windows

RowBytes: TypeAlias = NDArray[np.uint8]
"""uint8[n, row_bytes]: a stored column as bytes."""
Recipe: TypeAlias = Callable[[Windows, Mapping[str, RowSource], Array], None]
"""Computes one column of a batch. Arguments: the windows, the stored columns by name, and the output."""


class _Copy(NamedTuple):
    """A column of batches with values of stored rows."""

    name: str
    source: str
    row_bytes: int


class Expansion:
    """Writes the columns of batches of one table."""

    def __init__(self, steps: Steps, names: Collection[str]) -> None:
        """Write the columns with these names."""
        self._copies: dict[Layout, list[_Copy]] = {}
        for layout, copy in _copies(steps):
            if copy.name in names:
                self._copies.setdefault(layout, []).append(copy)
        self._recipes: Final = {name: recipe for name, recipe in _recipes(steps) if name in names}
        self._around: Final = _around(steps.item)
        self._is_ragged: Final = steps.is_ragged
        self._starts: Final = {name for name, column in steps.schema.items() if column.at == "start"}

    def write(self, windows: Windows, carried: Mapping[str, RowSource], columns: Mapping[str, Array]) -> None:
        """Write the columns of windows into C-contiguous arrays by name, ``dtype[b, *shape]``; see `row_counts`.

        ``carried`` are stored columns by name; at least those in `Steps.carried_for`.
        """
        has_row = windows.has_row(self._around.before, self._around.after).ravel() if self._is_ragged else None
        for layout, copies in self._copies.items():
            places = windows.places(layout)
            if has_row is not None:
                places = places.at(has_row)
            for name, source, row_bytes in copies:
                into: RowBytes = np.ndarray((len(places.rows), row_bytes), np.uint8, columns[name])
                copy_rows(carried[source], places.rows, into)
                if places.padded is not None:
                    into[places.padded] = 0
        for name, recipe in self._recipes.items():
            if has_row is None or name in self._starts:
                recipe(windows, carried, columns[name])
                continue
            padded = np.empty((len(windows), len(has_row) // len(windows)), columns[name].dtype)
            recipe(windows, carried, padded)
            padded.ravel().compress(has_row, out=columns[name])

    def row_counts(self, windows: Windows, names: Iterable[str]) -> dict[str, int] | None:
        """Return the length of each column if there is no padding. None: all have one element per window."""
        if not self._is_ragged:
            return None
        positions = int(windows.has_row(self._around.before, self._around.after).sum())
        return {name: len(windows) if name in self._starts else positions for name in names}


def as_bytes(column: Array) -> RowBytes:
    """View a contiguous column ``dtype[n, *shape]`` as bytes."""
    return column.reshape(len(column), -1).view(np.uint8)


def _around(item: Item) -> Layout:
    """Return the layout of a stored column that is sampled."""
    return Layout(item.burn_in, item.length - 1) if isinstance(item, Sequences) else Layout()


def _sums(item: Item) -> TypeGuard[Transitions]:
    """Whether returns are sums of several rewards."""
    return isinstance(item, Transitions) and item.n_step > 1


def _copies(steps: Steps) -> Iterator[tuple[Layout, _Copy]]:
    """List the columns that are copies, each with its layout."""
    around = _around(steps.item)
    for name, column in steps.schema.items():
        if column.sampled and column.at != "start":
            yield around, _Copy(name, name, column.row_bytes)
    for name, derived in steps.derived.items():
        if isinstance(derived, Stack):
            layout = around._replace(stacked=derived.count, repeats=derived.padding == "repeat", ahead=derived.ahead)
            yield layout, _Copy(name, derived.of, steps.schema[derived.of].row_bytes)
        elif isinstance(derived, Return) and not _sums(steps.item):
            yield around, _Copy(name, derived.of, steps.schema[derived.of].row_bytes)


def _recipes(steps: Steps) -> Iterator[tuple[str, Recipe]]:
    """List the other columns."""
    item, around = steps.item, _around(steps.item)
    for name, column in steps.schema.items():
        if column.sampled and column.at == "start":
            yield name, _first_row(name, around.before)
    for name, derived in steps.derived.items():
        match derived:
            case Return() if _sums(item):
                yield name, _n_step_return(derived.of, steps.schema[derived.of], item)
            case Discount():
                yield name, _discount(item) if isinstance(item, Transitions) else _discounts(item)
            case Mask():
                yield name, lambda windows, _, column: np.copyto(column, _is_step(windows, around))


def _first_row(source: str, before: int) -> Recipe:
    def write(windows: Windows, carried: Mapping[str, RowSource], column: Array) -> None:
        carried[source].take(windows.first_rows(before), axis=0, out=as_bytes(column), mode="clip")

    return write


def _n_step_return(source: str, stored: Column, item: Transitions) -> Recipe:
    places = np.arange(item.n_step)[:, None]

    def write(windows: Windows, carried: Mapping[str, RowSource], column: Array) -> None:
        rows = carried[source].take(windows.next_rows(item.n_step), axis=0)
        rewards = rows.view(stored.dtype).reshape(item.n_step, len(windows), *stored.shape).astype(np.float64)
        if not windows.are_whole and windows.after.min() < item.n_step:
            rewards[places >= windows.after] = 0.0  # the last row comes after the last reward
        total = rewards[-1]
        for reward in rewards[-2::-1]:
            total *= item.gamma
            total += reward
        np.copyto(column, total, casting="same_kind")

    return write


def _discount(item: Transitions) -> Recipe:
    powers = np.array([item.gamma**steps for steps in range(item.n_step + 1)], np.float32)

    def write(windows: Windows, _: Mapping[str, RowSource], column: Array) -> None:
        powers.take(windows.after, out=column, mode="clip")
        if windows.is_any_terminated:
            column[windows.is_terminated] = 0.0

    return write


def _discounts(item: Sequences) -> Recipe:
    around = Layout(item.burn_in, item.length - 1)
    gamma = np.float32(item.gamma)

    def write(windows: Windows, _: Mapping[str, RowSource], column: Array) -> None:
        np.multiply(_is_step(windows, around), gamma, out=column)
        (terminated,) = windows.is_terminated.nonzero()
        column[terminated, item.burn_in + windows.after[terminated] - 1] = 0.0

    return write


def _is_step(windows: Windows, around: Layout) -> NDArray[np.bool_]:
    """Return which positions of the sequences hold a step, bool[b, positions]."""
    places: Indices = np.arange(-around.before, around.after + 1)
    last_step = windows.after - windows.is_closed
    return (places >= -windows.before[:, None]) & (places <= last_step[:, None])
