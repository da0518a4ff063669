"""Draws from a queue that readers may repeat, because they did not get the reply.

    repeats = RepeatedDraws(log)
    repeats.store(stamp, range(0, 4), 4)    # a draw is about to be given these deliveries
    repeats.find(stamp)                     # the reader repeats it: range(0, 4)

While a server runs, rows that were delivered are overwritten only by as many others as the ring has room for, which is
usually far more than there are rows of replies on their way. After a restart, other clients may be back sooner than a
reader that repeats its last draws. So the rows are kept until the reader has received them, or until `forget_readers`
gives it up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from replay_server.storage.delivery_log import DeliveryLog, ReaderStamp

log = logging.getLogger(__name__)


class RepeatedDraws:
    """The draws of a queue that can be repeated, and the readers that may still do so after a restart."""

    def __init__(self, draws: DeliveryLog) -> None:
        """Start with the draws in a log; nobody is expected yet."""
        self._log = draws
        # By reader: the number of its last draw, and the key of the oldest row to keep.
        self._expected: dict[bytes, tuple[int, int]] = {}

    def find(self, stamp: ReaderStamp) -> range | None:
        """Return the numbers of the deliveries that a draw was given; None if it is new, or was forgotten."""
        return self._log.find(stamp)

    def store(self, stamp: ReaderStamp, deliveries: range, rows: int) -> None:
        """Record a draw of this many rows that is about to be given the deliveries with these numbers.

        If it was given others before, they are lost: say so.
        """
        if self._log.find(stamp) is not None:
            log.warning(
                "%s: %d rows of a draw that its reader repeats were overwritten meanwhile; it gets newer ones",
                self._log.folder,
                rows,
            )
        self._log.store(stamp, deliveries)

    def expect(self, first_row: Callable[[range], int | None]) -> None:
        """Keep rows for the readers that may repeat a draw, because the server has restarted.

        ``first_row`` returns the key of the oldest row of some deliveries; None if rows of them were overwritten.
        """
        for reader, sequence, deliveries in self._log.unconfirmed():
            row = first_row(deliveries)
            if row is not None:
                last, first = self._expected.get(reader, (0, row))
                self._expected[reader] = max(last, sequence), min(first, row)

    def received(self, reader_id: bytes, sequence: int) -> bool:
        """Note that a reader has received its draws up to this number.

        Return whether rows were kept for it, but no longer are.
        """
        expected = self._expected.get(reader_id)
        if expected is None or sequence < expected[0]:
            return False
        del self._expected[reader_id]
        return True

    def forget_readers(self) -> None:
        """Keep no rows any longer."""
        self._expected.clear()

    @property
    def are_expected(self) -> bool:
        """Whether rows are kept for any reader."""
        return bool(self._expected)

    def kept(self, otherwise: int) -> int:
        """Return the key of the oldest row that is kept for a reader; if there is none, ``otherwise``."""
        return min((first for _, first in self._expected.values()), default=otherwise)
