"""Publishes state in a table, and reads the newest publication, in any client; see `ReplayClient.publish`.

Each publication has consecutive rows, one for each part. Readers accept only publications that are whole, so they never
see half of one, whatever happens to its publisher, and no matter who else publishes at the same time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replay_client._operations.table import TableOperations
from replay_client._rows.published_state import (
    KEPT,
    PART_COLUMNS,
    PublishedState,
    has_publications,
    is_whole,
    last_rows,
    rows_ahead,
    unpacked,
)
from replay_client._transport.call import Operation
from replay_client.batch import Published, Rows
from replay_client.errors import DeadlineExceededError, InvalidArgumentError, ReplayError, TableNotFoundError
from replay_client.results.description import TableDescription

WAITS_FOR_S: Final = 5.0
"""Maximum seconds that one call waits for the next publication. Then the client polls again: its publisher may have
ended before the last part."""
_ATTEMPTS_TO_PUBLISH: Final = KEPT - 1
"""Attempts to publish without rows of other publications in between. Failed ones evict earlier publications."""
_LOOKS: Final = 8
"""How often to look if it is the turn of a publication before trying again anyway."""
_LEAST_TURN_S: Final = 0.5
_INSERTS_PER_TURN: Final = 4
"""Limits of a wait for other publishers, which may have ended: in seconds, and in times of the insert before it."""
_ATTEMPTS: Final = 8
"""Attempts to read before the rows are evicted."""
_MANY: Final = KEPT + 2
_MANY_ROWS: Final = 64
"""A reader that knows a version looks at so many publications from there on, or at so many rows."""
_SMALL_BYTES: Final = 32_768
"""If all publications of a table are that small, a reader that looks for the newest one reads their data at once."""
_VERSION_BITS: Final = 40
"""Bits of the versions of each shard."""
_FIRST_SHARE: Final = 2 / 3
"""Share of the parts of an awaited publication that are read first. Readers copy them while the publisher inserts the
rest. Afterwards, they copy only the rest, so that many readers on one host have it soon."""
_READ: Final = ("publication", "part", "data")
"""The columns of a publication that a reader needs."""
LOOK_AGAIN_S: Final = 0.5
"""Pause before another poll for a table that does not exist."""


class _Newest(NamedTuple):
    """The newest publication that is whole."""

    structure: int
    keys: NDArray[np.int64]
    """int64[parts]: keys of its rows."""
    data: NDArray[np.uint8] | None
    """uint8[parts, part bytes]: its data; None: it is not small, so it has not been read yet."""


class _Seen(NamedTuple):
    """What a look at the table has found."""

    newest: _Newest | None
    inserted: int
    """Rows ever inserted."""
    begun: int
    """Number of rows at the end that are the first parts of another publication."""


class Shown(NamedTuple):
    """A publication that a client has returned."""

    table_uid: bytes
    """The table that has it."""
    published: Published


class Channel:
    """Publications in one table. Thread-safe."""

    def __init__(self, table: TableDescription, operations: TableOperations, shard_id: int = 0) -> None:
        """Use a table that was created for a `PublishedState`; ``shard_id`` says which shard it is.

        Raises:
            InvalidArgumentError: the table has other columns.
        """
        if not has_publications(table.schema):
            expected = "a name that no other table has"
            raise InvalidArgumentError.of_field("name", expected, f"{table.name!r}, a table with other columns")
        self._name = table.name
        self.uid: Final = table.uid
        """Distinguishes the table from earlier ones of its name."""
        self._operations = operations
        self._parts = table.capacity // KEPT
        self._part_bytes = table.schema["data"].row_bytes
        is_small = table.capacity * self._part_bytes <= _SMALL_BYTES
        self._looks_at = [*PART_COLUMNS, "data"] if is_small else PART_COLUMNS
        self._structure: int | None = None  # of what it has published
        # If publications move to another shard, because the first one was removed, their versions keep increasing.
        self._first_version = (shard_id << _VERSION_BITS) + 1

    def publish(self, state: PublishedState, timeout_s: float | None) -> Operation[int]:
        """Publish a state that was checked, and return its version; see `ReplayClient.publish`."""
        if (self._parts, self._part_bytes) != state.shape:
            expected = f"as much as the table {self._name!r} was created for; publish under another name, or drop it"
            raise InvalidArgumentError.of_field("values", expected, f"{state.shape[0] * state.shape[1]:,} bytes")
        rows = state.rows()
        for _ in range(_ATTEMPTS_TO_PUBLISH):
            began = time.monotonic()
            keys = yield from self._operations.insert(rows, priorities=None, timeout_s=timeout_s)
            if keys[-1] - keys[0] == self._parts - 1:
                self._structure = state.structure
                return self._version(keys)
            wait_s = max(_LEAST_TURN_S, _INSERTS_PER_TURN * (time.monotonic() - began))
            yield from self._await_turn(int(rows["publication"][0]), wait_s)
        raise ReplayError(f"other programs publish under {self._name!r} at the same time; use a name for each")

    def _await_turn(self, publication: int, wait_s: float) -> Operation[None]:
        """Wait for the turn of a publication whose rows mix with those of others; see `rows_ahead`.

        Publishers that insert nothing for ``wait_s`` seconds may have ended, so they lose their turn.
        """
        for _ in range(_LOOKS):
            rows, inserted = yield from self._newest_rows()
            ahead = rows_ahead(rows["part"], rows["publication"], self._parts, publication)
            if not ahead or not (yield from self._has_come(inserted - 1 + ahead, wait_s)):
                return

    def _has_come(self, key: int, wait_s: float) -> Operation[bool]:
        row = yield from self._operations.read([key], columns=[], wait_s=wait_s)
        return row.batch_size == 1

    def check(self, state: PublishedState) -> Operation[None]:
        """Check that a state has the structure of the newest publication."""
        structure = state.structure
        if structure == self._structure:
            return
        newest = (yield from self._look(None)).newest
        if newest is not None and newest.structure != structure:
            earlier = yield from self._operations.read(newest.keys, columns=["data"])
            if earlier.batch_size == self._parts:
                raise state.difference(earlier["data"], self._name, self._version(newest.keys))

    def latest(self, known: int | None, wait_s: float, shown: Shown | None = None) -> Operation[Shown | None]:
        """Read the newest publication, unless its version is ``known``.

        If there is none, wait for the next one, for at most ``wait_s`` seconds and `WAITS_FOR_S`. None: poll again. If
        the last one that was ``shown`` is of a table that was dropped since, its version says nothing about this one.
        """
        if shown is not None and shown.table_uid != self.uid and shown.published.version == known:
            known = None
        for _ in range(_ATTEMPTS):
            newest, inserted, begun = yield from self._look(known)
            if newest is None or self._version(newest.keys) == known:
                keys = inserted - begun + np.arange(self._parts)
                return (yield from self._await(keys, bool(begun), min(wait_s, WAITS_FOR_S))) if wait_s > 0 else None
            if newest.data is not None:
                return self._shown(newest.keys, newest.data)
            rows = self._operations.copied(newest.keys, _READ)
            if rows is None:
                rows = yield from self._operations.read(newest.keys, columns=_READ)
            if is_whole(rows["part"], rows["publication"], self._parts):
                return self._shown(newest.keys, rows["data"])
        raise ReplayError(f"{self._name!r} is published faster than it can be read")

    def _await(self, keys: NDArray[np.int64], is_begun: bool, wait_s: float) -> Operation[Shown | None]:
        """Read the next publication, which will have these keys. None: the wait is over, or others publish, too."""
        # The publisher of what was begun may have ended, so read nothing of it before its last part is there.
        if is_begun and not (yield from self._has_come(int(keys[-1]), wait_s)):
            return None
        first = math.ceil(_FIRST_SHARE * self._parts)
        rows = yield from self._operations.read(keys, columns=_READ, wait_s=wait_s, rows_at_once=first)
        if not is_whole(rows["part"], rows["publication"], self._parts):
            return None
        return self._shown(keys, rows["data"])

    def _shown(self, keys: NDArray[np.int64], data: NDArray[np.uint8]) -> Shown:
        return Shown(self.uid, Published(self._version(keys), unpacked(data)))

    def _look(self, known: int | None) -> Operation[_Seen]:
        """Look at the newest rows. If there are not many publications since the ``known`` version, this is one call."""
        if known is not None and known >= self._first_version:
            keys = (known - self._first_version) * self._parts + np.arange(max(_MANY_ROWS, _MANY * self._parts))
            rows = yield from self._operations.read(keys, columns=self._looks_at)
            # The newest rows of a table are live. If the last of these is not, they include the newest ones.
            if rows.batch_size and rows.row_keys[-1] != keys[-1]:
                return self._found(rows, int(rows.row_keys[-1]) + 1)
        return self._found(*(yield from self._newest_rows()))

    def _newest_rows(self) -> Operation[tuple[Rows, int]]:
        """Read which parts all live rows have; return this and the number of rows ever inserted."""
        table = yield from self._operations.describe()
        keys = np.arange(table.inserted - table.size, table.inserted)
        return (yield from self._operations.read(keys, columns=self._looks_at)), table.inserted

    def _found(self, rows: Rows, inserted: int) -> _Seen:
        """Return what `_look` does, given the newest live rows and the number of rows ever inserted."""
        parts, ends = rows["part"], last_rows(rows["part"], rows["publication"], self._parts)
        # The newest rows may be the first parts of a publication in progress.
        begun = (int(parts[-1]) + 1) % self._parts if len(parts) else 0
        if not ends:
            return _Seen(None, inserted, begun)
        last = slice(ends[-1] + 1 - self._parts, ends[-1] + 1)
        data = rows["data"][last] if "data" in rows else None
        newest = _Newest(int(rows["structure"][ends[-1]]), rows.row_keys[last], data)
        return _Seen(newest, inserted, begun)

    def _version(self, keys: NDArray[np.int64]) -> int:
        """Return the version of a publication with these keys.

        The rows of a publication are consecutive, so a later one always has a higher number.
        """
        return self._first_version + int(keys[-1]) // self._parts


def checked_version(wait_newer: int | None) -> int | None:
    """Check the version that a caller knows.

    Raises:
        InvalidArgumentError: it is no whole number.
    """
    if wait_newer is None or (isinstance(wait_newer, int | np.integer) and not isinstance(wait_newer, bool)):
        return wait_newer
    raise InvalidArgumentError.of_field(
        "wait_newer", "the version of an earlier publication, or None", repr(wait_newer)
    )


def nothing_yet(name: str) -> Callable[[float], str]:
    """Return what says, after a number of seconds, for what a reader waits."""
    return lambda waited_s: (
        f"waited {waited_s:g} s, but the server has shown nothing published under this name; this ends when a program "
        f"calls client.publish({name!r}, ...)"
    )


def not_published(name: str, limit_s: float) -> TableNotFoundError:
    """Return the error of a reader who has found no table until its time limit."""
    what = f"nothing was published under {name!r} within {limit_s:g} s; call client.publish({name!r}, ...) first"
    return TableNotFoundError(what, reason="TABLE_NOT_FOUND", metadata={"table": name})


def too_late(name: str, known: int | None, limit_s: float) -> DeadlineExceededError:
    """Return the error of a reader whose time limit has expired."""
    what = "nothing" if known is None else f"nothing but version {known}"
    return DeadlineExceededError(f"{what} was published under {name!r} within {limit_s:g} s", metadata={"table": name})
