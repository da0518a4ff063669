"""The state of a table in a mapped file: one aligned int64 word per field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from replay_proto.layout import HEADER_FILE, HEADER_WORDS, WRITE_HORIZON

from replay_server.files.mapped_file import MappedFile
from replay_server.storage.ranges import RESETTING
from replay_server.storage.table_state import STATE_FIELDS, STATE_WORDS, StateField, TableState

FIRST_STATE_WORD = WRITE_HORIZON + 1
"""Index of the word with the first field of the `TableState`; the other fields follow."""
LOST = FIRST_STATE_WORD + STATE_WORDS
"""Index of the word with the number of rows ever lost. A recovery stores it first, so that a repeated recovery does not
count the same rows twice."""
SYNC_FAILED = LOST + 1
"""Index of the word that is 1 if a sync failed since the last sync point."""
assert SYNC_FAILED < HEADER_WORDS
_WORD_OF = {name: FIRST_STATE_WORD + place for place, name in enumerate(STATE_FIELDS)}


class Header:
    """The header of a table: ``write_horizon`` and the `TableState`.

    If a reader in another process copies row k and then finds ``k + slots >= write_horizon``, its copy is intact.
    Storing ``inserted`` commits an insert.
    """

    def __init__(self, folder: Path, *, most_live: int, times: int, numbers_per_row: int, create: bool) -> None:
        """Map the header of the table in ``folder``; see `TableConfig` for the numbers.

        Raises:
            ValueError: an existing header is inconsistent.
        """
        self.file = MappedFile(folder / HEADER_FILE, HEADER_WORDS * 8, create=create)
        self.file.reserve(self.file.size)
        self._words = self.file.view(np.dtype("<i8"), (HEADER_WORDS,))
        self._most_live, self._times = most_live, times
        state = state_in(self._words)
        try:
            state.check(numbers_per_row)
        except ValueError as error:
            self.close()
            raise ValueError(f"{folder / HEADER_FILE}: {error}; the file is corrupt") from error
        written = int(self._words[WRITE_HORIZON])
        self.set(state)
        if times:
            # A killed server may have been writing over rows that were delivered, but can be asked for again.
            self.write_horizon = min(max(written, state.inserted), state.inserted + most_live)

    @property
    def state(self) -> TableState:
        """The table's counters."""
        return self._state

    @property
    def inserted(self) -> int:
        """Number of rows ever inserted and committed; also the next row's key."""
        return self._state.inserted

    @property
    def oldest(self) -> int:
        """Key of the oldest live row; ``inserted`` if there is none."""
        return self._oldest

    def store(self, field: StateField, value: int) -> None:
        """Change one field of the state with a single store."""
        self._words[_WORD_OF[field]] = value
        self._keep(self._state._replace(**{field: value}))

    def set(self, state: TableState) -> None:
        """Replace the state of a table whose rows are already stored; no other writes may run."""
        self.write_horizon = state.inserted
        self._store_all(state)

    def reset(self) -> None:
        """Remove all rows.

        The first store commits the reset. If the server is killed after it, the next server completes the reset.
        """
        self._words[_WORD_OF["sampled"]] = RESETTING
        self._store_all(self._state.after_reset())

    def _store_all(self, state: TableState) -> None:
        for field, value in zip(STATE_FIELDS, state, strict=True):
            self._words[_WORD_OF[field]] = value
        self._keep(state)

    def _keep(self, state: TableState) -> None:
        """Keep a copy of the stored state, because reading the mapping is slow. Only this process changes the state."""
        self._state = state
        self._oldest = state.oldest(self._most_live, self._times)

    @property
    def write_horizon(self) -> int:
        """Key after the newest row that was written or is being written."""
        return self._write_horizon

    @write_horizon.setter
    def write_horizon(self, value: int) -> None:
        self._words[WRITE_HORIZON] = self._write_horizon = value

    @property
    def sync_failed(self) -> bool:
        """Whether a sync failed since the last sync point. Persists if the server is killed."""
        return bool(self._words[SYNC_FAILED])

    @sync_failed.setter
    def sync_failed(self, value: bool) -> None:
        self._words[SYNC_FAILED] = value

    def close(self) -> None:
        """Unmap the header."""
        del self._words
        self.file.close()


def state_in(words: NDArray[Any]) -> TableState:
    """Decode the state from a header, which may be corrupt. words: int64[`HEADER_WORDS`]."""
    return TableState.from_words(words[FIRST_STATE_WORD:LOST].tolist())
