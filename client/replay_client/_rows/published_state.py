"""Converts state that a program publishes, such as the weights of a network, to rows of bytes and back.

    state = PublishedState(module.state_dict())
    rows = state.rows()                                 # of a table with the columns `state.columns`
    values = unpacked(rows["data"])                     # the same arrays, as views of the rows

The bytes begin with a description of all arrays in JSON. They are cut into parts of equal size, one for each row, so
that a network may be larger than a message.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from replay_proto.framing import Array
from replay_proto.schema import Column, Schema

from replay_client._rows.checks import as_array, described
from replay_client.errors import InvalidArgumentError

KEPT: Final = 4
"""Publications that a table keeps. A reader has the time of this many, less two, to copy one."""
PART_COLUMNS: Final = ("publication", "part", "structure")
"""Columns that say which part of which publication a row has."""
_PART_BYTES: Final = 1 << 16
"""Bytes of a part; a power of two. Large enough that the other columns do not matter."""
_LEAST_PART_BYTES: Final = 1 << 10
_ALIGNED: Final = 64
"""Each array begins at a multiple of this many bytes, as NumPy and torch like it."""
_LENGTH: Final = np.dtype("<u8")
"""Begins the bytes: the length of the description."""
_KINDS: Final = "biufc"


class Leaf(NamedTuple):
    """One array of a state."""

    path: tuple[str, ...]
    """The keys that lead to it."""
    dtype: str
    """Its dtype in NumPy's notation, with the byte order: "<f4". Empty if this is a mapping without arrays."""
    shape: tuple[int, ...]

    def __str__(self) -> str:
        """Return dtype and shape, such as ``float32[64,4]``."""
        if not self.dtype:
            return "an empty mapping"
        return f"{np.dtype(self.dtype).name}[{','.join(map(str, self.shape))}]"

    @property
    def field(self) -> str:
        """Where the array is, for messages: ``values['layer']['weight']``."""
        return "values" + "".join(f"[{key!r}]" for key in self.path)

    @property
    def size(self) -> int:
        """Bytes of the array, rounded up so that the next one is aligned."""
        return _aligned(np.dtype(self.dtype).itemsize * math.prod(self.shape)) if self.dtype else 0


class PublishedState:
    """A state in bytes, cut into parts."""

    def __init__(self, values: Any) -> None:
        """Pack a state.

        Args:
            values: a mapping of names to arrays, tensors, numbers or further mappings; or an object with a
                ``state_dict`` method, such as a ``torch.nn.Module``.
        """
        arrays = dict(_leaves(values))
        if not any(leaf.dtype for leaf in arrays):
            raise InvalidArgumentError.of_field("values", "at least one array", "none")
        self.leaves = tuple(arrays)
        head = _head(self.leaves)
        size = len(head) + sum(leaf.size for leaf in self.leaves)
        part_bytes = min(_PART_BYTES, max(_LEAST_PART_BYTES, 1 << (size - 1).bit_length()))
        self._parts = np.zeros((-(-size // part_bytes), part_bytes), np.uint8)
        flat = self._parts.reshape(-1)
        flat[: len(head)] = np.frombuffer(head, np.uint8)
        for leaf, place in _placed(self.leaves, len(head)):
            if leaf.dtype:
                np.copyto(_view(flat, leaf, place), arrays[leaf])

    @property
    def columns(self) -> dict[str, Column]:
        """The columns of a table for this state."""
        return {
            "publication": Column("uint64"),
            "part": Column("int32"),
            "structure": Column("uint64"),
            "data": Column("uint8", self._parts.shape[1]),
        }

    @property
    def capacity(self) -> int:
        """The capacity of a table for this state."""
        return KEPT * len(self._parts)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of parts, and bytes of each."""
        return len(self._parts), self._parts.shape[1]

    @property
    def structure(self) -> int:
        """A number for names, dtypes and shapes of all arrays; their order does not matter."""
        text = json.dumps(sorted(self.leaves)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")

    def rows(self) -> dict[str, Array]:
        """Return the rows of a publication. Each call makes another publication."""
        parts = len(self._parts)
        return {
            "publication": np.full(parts, secrets.randbits(64), np.uint64),
            "part": np.arange(parts, dtype=np.int32),
            "structure": np.full(parts, self.structure, np.uint64),
            "data": self._parts,
        }

    def difference(self, earlier: Array, table: str, version: int) -> InvalidArgumentError:
        """Return the error that names an array that is not as in an earlier publication, of this version in this table.

        ``earlier``, uint8[parts, bytes], is the data of that publication.
        """
        old = {leaf.path: leaf for leaf in _leaves_in(earlier.reshape(-1))[0]}
        new = {leaf.path: leaf for leaf in self.leaves}
        leaf = next(each for each in (*new.values(), *old.values()) if old.get(each.path) != new.get(each.path))
        expected = f"{old[leaf.path]}" if leaf.path in old else "no such array"
        got = f"{new[leaf.path]}" if leaf.path in new else "none"
        advice = f"as in version {version} of {table!r}; publish under another name, or drop that table"
        return InvalidArgumentError.of_field(leaf.field, f"{expected}, {advice}", got)


def has_publications(schema: Schema) -> bool:
    """Whether a table has the columns of one that was created for a `PublishedState`."""
    return schema.keys() == {*PART_COLUMNS, "data"}


def is_whole(parts: NDArray[np.int32], publications: NDArray[np.uint64], count: int) -> bool:
    """Whether rows are the ``count`` parts of one publication, in order. ``parts`` and ``publications`` are [n]."""
    return len(parts) == count and bool((publications == publications[0]).all() and (parts == np.arange(count)).all())


def last_rows(parts: NDArray[np.int32], publications: NDArray[np.uint64], count: int) -> list[int]:
    """Return the index of the last row of each whole publication among rows in order of insertion, oldest first."""
    found = []
    for end in np.flatnonzero(parts == count - 1).tolist():
        rows = slice(max(0, end + 1 - count), end + 1)
        if is_whole(parts[rows], publications[rows], count):
            found.append(end)
    return found


def rows_ahead(parts: NDArray[np.int32], publications: NDArray[np.uint64], count: int, own: int) -> int:
    """Return how many rows are inserted before the turn of publication ``own``, which mixes with others.

    First, the publications that came after its beginning, or at the same time, are completed. Then those that mix with
    others are inserted again, in the order in which they began.

    Args:
        parts: int32[n], the parts of rows in order of insertion.
        publications: uint64[n], their publications. An attempt to repeat one has the same number.
        count: the number of parts of a publication.
        own: the publication.
    """
    places = {number: np.flatnonzero(publications == number) for number in dict.fromkeys(publications.tolist())}
    if own not in places:
        return 0
    recent = [place[-1] for place in places.values() if place[-1] > places[own][0]]
    missing = sum(count - 1 - int(parts[last]) for last in recent)
    if missing:
        return missing
    # A publication that was evicted in part counts as whole if the rest of it is.
    mixed = [number for number, place in places.items() if np.ptp(place[-count:]) >= len(place[-count:])]
    return count * mixed.index(own) if own in mixed else 0


def unpacked(data: Array) -> dict[str, Any]:
    """Return the arrays of a publication by name, nested as they were published; they are views of ``data``.

    ``data``, uint8[parts, bytes], has all parts in order.
    """
    flat = data.reshape(-1)
    leaves, end = _leaves_in(flat)
    values: dict[str, Any] = {}
    for leaf, place in _placed(leaves, end):
        *outer, last = leaf.path
        within = values
        for key in outer:
            within = within.setdefault(key, {})
        within[last] = _view(flat, leaf, place) if leaf.dtype else {}
    return values


def _leaves(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[Leaf, Array]]:
    if callable(getattr(values, "state_dict", None)):
        values = values.state_dict()
    if isinstance(values, Mapping):
        for key, value in values.items():
            if not isinstance(key, str):
                raise InvalidArgumentError.of_field(Leaf(path, "", ()).field, "names as keys", repr(key))
            yield from _leaves(value, (*path, key))
        if not values and path:
            yield Leaf(path, "", ()), np.empty(0)
        return
    where = Leaf(path, "", ()).field
    expected = "an array, a tensor or a number" if path else "a mapping of names to arrays, or a torch module"
    try:
        array = as_array(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InvalidArgumentError.of_field(where, expected, f"{type(values).__name__}: {error}") from None
    if not path or array.dtype.kind not in _KINDS:
        got = type(values).__name__ if array.dtype.kind == "O" or not path else described(array)
        raise InvalidArgumentError.of_field(where, expected, got)
    yield Leaf(path, array.dtype.newbyteorder("<").str, array.shape), array


def _head(leaves: tuple[Leaf, ...]) -> bytes:
    text = json.dumps(leaves).encode()
    head = np.array(len(text), _LENGTH).tobytes() + text
    return head.ljust(_aligned(len(head)), b"\0")


def _leaves_in(flat: Array) -> tuple[list[Leaf], int]:
    """Return the arrays that a publication has, and where the first one begins."""
    end = _LENGTH.itemsize + int(flat[: _LENGTH.itemsize].view(_LENGTH)[0])
    leaves = json.loads(flat[_LENGTH.itemsize : end].tobytes())
    return [Leaf(tuple(path), dtype, tuple(shape)) for path, dtype, shape in leaves], _aligned(end)


def _placed(leaves: tuple[Leaf, ...] | list[Leaf], first: int) -> Iterator[tuple[Leaf, int]]:
    """Yield each array with its place in the bytes."""
    for leaf in leaves:
        yield leaf, first
        first += leaf.size


def _view(flat: Array, leaf: Leaf, place: int) -> Array:
    dtype = np.dtype(leaf.dtype)
    size = dtype.itemsize * int(np.prod(leaf.shape, dtype=np.int64))
    return flat[place : place + size].view(dtype).reshape(leaf.shape)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
