"""The few numbers that say which rows of a table are live: aligned int64 words in a mapped file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from replay_proto.layout import (
    DELIVERED,
    HEADER_FILE,
    HEADER_WORDS,
    INSERTED,
    RESET_FLOOR,
    SAMPLED,
    SYNC_FAILED,
    WRITE_HORIZON,
)

from replay_server.storage.mapped_file import MappedFile

MAX_KEY = (1 << 48) - 1
"""The top 16 bits of a key are reserved."""


class Header:
    """``write_horizon``, ``inserted``, ``reset_floor`` and the counters of a table, each stored in one aligned word.

    A reader in another process that copied row k and then finds ``k + slots >= write_horizon`` has
    copied it whole. ``inserted`` is the one commit point of an insert.
    """

    def __init__(self, folder: Path, *, create: bool) -> None:
        """Map the header of the table in ``folder``.

        Raises:
            ValueError: if an existing one cannot be true.
        """
        self.file = MappedFile(folder / HEADER_FILE, HEADER_WORDS * 8, create=create)
        self.file.reserve(self.file.size)
        self._words = self.file.view(np.dtype("<i8"), (HEADER_WORDS,))
        # Loads from the mapping are slow in Python, and only this process stores to it.
        self._inserted = int(self._words[INSERTED])
        self._reset_floor = int(self._words[RESET_FLOOR])
        if not 0 <= self._reset_floor <= self._inserted <= MAX_KEY:
            self.close()
            raise ValueError(
                f"{folder / HEADER_FILE}: {self._inserted} rows inserted, reset at {self._reset_floor}; "
                "the file is damaged"
            )
        self.write_horizon = self._inserted
        self._delivered = int(self._words[DELIVERED])
        self._sampled = int(self._words[SAMPLED])

    @property
    def inserted(self) -> int:
        """Rows ever inserted and committed: the next row's key."""
        return self._inserted

    @inserted.setter
    def inserted(self, value: int) -> None:
        self._words[INSERTED] = self._inserted = value

    @property
    def reset_floor(self) -> int:
        """No key below this is live: where the last reset came."""
        return self._reset_floor

    @reset_floor.setter
    def reset_floor(self, value: int) -> None:
        self._words[RESET_FLOOR] = self._reset_floor = value

    @property
    def write_horizon(self) -> int:
        """Rows below this key may be being written."""
        return self._write_horizon

    @write_horizon.setter
    def write_horizon(self, value: int) -> None:
        self._words[WRITE_HORIZON] = self._write_horizon = value

    @property
    def delivered(self) -> int:
        """Number of the next delivery of a queue, unless a reset went beyond it."""
        return self._delivered

    @delivered.setter
    def delivered(self, value: int) -> None:
        self._words[DELIVERED] = self._delivered = value

    @property
    def sampled(self) -> int:
        """Rows drawn since the table was made or reset, if it has a rate limiter."""
        return self._sampled

    @sampled.setter
    def sampled(self, value: int) -> None:
        self._words[SAMPLED] = self._sampled = value

    @property
    def sync_failed(self) -> bool:
        """Whether the disk refused something since the last sync point. A killed server leaves it to the next."""
        return bool(self._words[SYNC_FAILED])

    @sync_failed.setter
    def sync_failed(self, value: bool) -> None:
        self._words[SYNC_FAILED] = value

    def close(self) -> None:
        """Unmap it."""
        del self._words
        self.file.close()
