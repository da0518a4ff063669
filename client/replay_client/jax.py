"""Registers batches as JAX pytrees when imported. Only this module imports jax.

    import replay_client.jax

    batch = to_jax(next(sampler), device)                 # a Batch of JAX arrays
    td_errors = step(params, batch)                       # jitted functions accept batches, and are compiled once
    sampler.update_priorities(batch, abs(td_errors))

`to_jax` does not wait for the copy, so it overlaps with what the device computes. The keys of its batches are NumPy
arrays. Any other function of JAX that makes batches, such as `jax.tree.map`, treats the keys like the other leaves.

The leaves are the arrays with one value per row: columns, keys, probabilities and weights. So an operation on all
leaves (a slice, a permutation, stacking batches) also applies to the keys. Keys have 64 bits, but JAX truncates
integers to 32 bits by default. So the leaf of the keys stores each key as two halves, ``uint32[n, 2]``. In a batch of
JAX arrays, `row_keys` is a `Wide`, which `update_priorities` and `numpy.asarray` convert back.

Values of the whole batch (`beta`, `table_size`, `inserted`, ...) are not leaves. Inside traced functions, and in their
results, they are None. A `MixedBatch` loses its `parts`, and a batch of a table of steps its `position_keys`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import jax
import numpy as np
from numpy.typing import DTypeLike, NDArray

from replay_client._rows.positions import LostPositions
from replay_client.batch import Batch, MixedBatch, Rows

_HALF: Final = np.dtype("<u4")


class Wide:
    """64-bit integers, split into halves that JAX does not truncate. ``np.asarray(wide)`` converts them back."""

    def __init__(self, halves: Any, dtype: np.dtype[Any]) -> None:
        """``halves`` is uint32[n, 2] of any library, the lower half first; ``dtype`` is int64 or uint64."""
        self.halves = halves
        self.dtype = dtype

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Convert the halves back to integers.

        Raises:
            TypeError: an operation on the leaves made the halves invalid.
        """
        if not self.is_whole:
            raise TypeError("these keys were changed by arithmetic; pass the batch as drawn")
        whole: NDArray[Any] = np.ascontiguousarray(np.asarray(self.halves)).view(self.dtype)[..., 0]
        return whole if dtype is None else whole.astype(dtype)

    @property
    def is_whole(self) -> bool:
        """Whether the halves are still valid."""
        return getattr(self.halves, "dtype", None) == _HALF and np.shape(self.halves)[-1:] == (2,)

    def __len__(self) -> int:
        shape = np.shape(self.halves)
        return shape[0] if shape else 0


@dataclass(frozen=True)
class _Kind:
    """How a type is flattened into leaves: first its columns, then the attributes `plain` and `wide`."""

    made: type[Any]
    plain: tuple[str, ...]
    """Attributes that become leaves unchanged."""
    wide: Mapping[str, str]
    """Dtypes of the attributes with 64-bit integers, which are split into halves."""
    facts: tuple[str, ...] = ()
    """Attributes with one value per batch."""
    positions: str = ""
    """The attribute that describes the rows of windows, if there is one. It is lost, because it is not a leaf."""


_KINDS: Final = (
    _Kind(
        Batch,
        plain=("probabilities", "weights"),
        wide={"row_keys": "<i8"},
        facts=("beta", "table_size", "drawable", "total_mass", "smallest_probability", "inserted", "row_info"),
        positions="_positions",
    ),
    _Kind(
        MixedBatch,
        plain=("probabilities", "weights", "tables"),
        wide={"row_keys": "<i8"},
        facts=("beta", "table_size", "drawable", "total_mass", "smallest_probability", "inserted", "row_info"),
        positions="_positions",
    ),
    _Kind(
        Rows,
        plain=("priorities", "ends"),
        wide={"row_keys": "<i8", "streams": "<u8", "episodes": "<u8", "steps": "<i8"},
    ),
)


class _Structure:
    """The pytree's static `aux_data`.

    JAX recompiles a function if this object changes. So only the column names count for equality and hash, not values
    of the whole batch.
    """

    def __init__(self, names: tuple[str, ...], facts: Mapping[str, Any], *, has_positions: bool) -> None:
        self.names = names
        self.facts = facts
        self.has_positions = has_positions

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Structure) and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)


def to_jax(batch: Batch, device: jax.Device | jax.sharding.Sharding | None = None) -> Batch:
    """Copy a batch to a device.

    Args:
        batch: a batch of arrays.
        device: the device, or a sharding of the rows over several devices; None: JAX's default.

    Returns:
        The batch with JAX arrays as columns, probabilities and weights. JAX converts 64-bit values to 32 bits unless
        ``jax_enable_x64`` is set. Keys stay as they are.
    """
    moved: dict[str, Any] = jax.device_put(
        {"columns": dict(batch.columns), "probabilities": batch.probabilities, "weights": batch.weights}, device
    )
    if isinstance(batch, MixedBatch):
        return replace(batch, **moved, parts={name: to_jax(part, device) for name, part in batch.parts.items()})
    return replace(batch, **moved)


def _taken_apart(kind: _Kind, rows: Any) -> tuple[list[Any], _Structure]:
    leaves = [*rows.values(), *(getattr(rows, name) for name in kind.plain)]
    leaves += [_halves(getattr(rows, name)) for name in kind.wide]
    facts = {name: getattr(rows, name) for name in kind.facts}
    has_positions = bool(kind.positions) and getattr(rows, kind.positions) is not None
    return leaves, _Structure(tuple(rows), facts, has_positions=has_positions)


def _put_together(kind: _Kind, structure: _Structure, given: Iterable[Any]) -> Any:
    leaves = list(given)
    is_traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
    rest = iter(leaves)
    return kind.made(
        columns={name: next(rest) for name in structure.names},
        **{name: next(rest) for name in kind.plain},
        **{name: _whole(next(rest), np.dtype(dtype)) for name, dtype in kind.wide.items()},
        **(dict.fromkeys(kind.facts) if is_traced else structure.facts),
        **({kind.positions: LostPositions()} if structure.has_positions else {}),
    )


def _halves(values: Any) -> Any:
    """Return the leaf for 64-bit integers: their halves, ``uint32[n, 2]``; None for None."""
    if values is None:
        return None
    if isinstance(values, Wide):
        return values.halves
    return np.ascontiguousarray(values)[..., None].view(_HALF)


def _whole(leaf: Any, dtype: np.dtype[Any]) -> Any:
    """Return the integers of a leaf: as a 64-bit array if the leaf is a valid NumPy array, otherwise as a `Wide`."""
    if leaf is None:
        return None
    wide = Wide(leaf, dtype)
    return np.asarray(wide) if isinstance(leaf, np.ndarray) and wide.is_whole else wide


for _kind in _KINDS:
    jax.tree_util.register_pytree_node(_kind.made, partial(_taken_apart, _kind), partial(_put_together, _kind))
