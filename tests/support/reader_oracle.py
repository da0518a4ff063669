"""What readers of a queue may draw again, and what a restarted server keeps for them."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st
from replay_server.storage.delivery_log import ReaderStamp

READERS = st.sampled_from([bytes([number]) * 16 for number in range(1, 4)])


class Readers:
    """The draws of all readers, with their deliveries."""

    def __init__(self) -> None:
        self.draws: dict[ReaderStamp, list[int]] = {}
        """Keys of what was delivered."""
        self.expected: dict[bytes, tuple[int, int]] = {}
        """Since a restart, by reader: number of its last draw, and key of the oldest row to keep."""

    def next_stamp(self, reader: bytes, behind: int) -> ReaderStamp:
        """Number the next draw of a reader, which has received all replies but the last ``behind``."""
        last = max((each.sequence for each in self.draws if each.reader_id == reader), default=0)
        return ReaderStamp(reader, last + 1, max(0, last - behind))

    def drawn(self, stamp: ReaderStamp, keys: list[int]) -> None:
        """Note a new draw."""
        self.draws[stamp] = keys

    def arrived(self, stamp: ReaderStamp) -> bool:
        """Note what a reader has received; return whether rows were kept for it, but no longer are."""
        last, _ = self.expected.get(stamp.reader_id, (stamp.received + 1, 0))
        return stamp.received >= last and self.expected.pop(stamp.reader_id) is not None

    def restarted(self, oldest_row: Callable[[list[int]], int | None]) -> None:
        """Expect the readers that may not have received replies; ``oldest_row`` is None if rows are gone."""
        self.expected = {}
        received: dict[bytes, int] = {}
        for stamp in self.draws:
            received[stamp.reader_id] = max(received.get(stamp.reader_id, 0), stamp.received)
        for stamp, keys in self.draws.items():
            row = oldest_row(keys)
            if stamp.sequence > received[stamp.reader_id] and row is not None:
                last, first = self.expected.get(stamp.reader_id, (0, row))
                self.expected[stamp.reader_id] = max(last, stamp.sequence), min(first, row)

    def kept(self, otherwise: int) -> int:
        """The oldest row that is kept for a reader, but no newer than ``otherwise``."""
        return min([otherwise, *(first for _, first in self.expected.values())])
