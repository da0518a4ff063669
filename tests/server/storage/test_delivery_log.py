"""The log of deliveries compared with a list, with restarts at any commit point."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_server.storage.delivery_log import DELIVERIES_KEPT, DeliveryLog, ReaderStamp

READERS = [bytes([number]) * 16 for number in range(1, 4)]


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(READERS), st.integers(1, 3), st.integers(1, 9), st.integers(0, 2)),
            st.integers(0, 30),
        ),
        min_size=1,
        max_size=60,
    )
)
def test_it_says_what_a_list_says(operations: list[tuple[bytes, int, int, int] | int]) -> None:
    """A number is how many of the last deliveries a killed server had not counted yet."""
    with tempfile.TemporaryDirectory() as folder:
        log = DeliveryLog(Path(folder), delivered=0, create=True)
        draws: list[tuple[ReaderStamp, range]] = []
        delivered = 0
        for operation in operations:
            if isinstance(operation, int):
                log.close()
                delivered = max(0, delivered - operation)
                log = DeliveryLog(Path(folder), delivered=delivered, create=False)
                draws = [(stamp, numbers) for stamp, numbers in draws if numbers.stop <= delivered]
            else:
                reader, skipped, count, behind = operation
                last = max((stamp.sequence for stamp, _ in draws if stamp.reader_id == reader), default=0)
                stamp = ReaderStamp(reader, last + skipped, max(0, last - behind))
                draws.append((stamp, range(delivered, delivered + count)))
                log.store(*draws[-1])
                delivered += count
            for stamp, numbers in draws:
                assert log.find(stamp) == numbers
                assert log.find(stamp._replace(sequence=stamp.sequence + 100)) is None
            received = {
                reader: max((stamp.received for stamp, _ in draws if stamp.reader_id == reader), default=0)
                for reader in READERS
            }
            assert sorted(log.unconfirmed()) == sorted(
                (stamp.reader_id, stamp.sequence, numbers)
                for stamp, numbers in draws
                if stamp.sequence > received[stamp.reader_id]
            )
        log.close()


@pytest.mark.parametrize("restarts", [False, True])
def test_it_forgets_the_oldest_draws(tmp_path: Path, restarts: bool) -> None:
    log = DeliveryLog(tmp_path, delivered=0, create=True)
    more = 100
    for number in range(DELIVERIES_KEPT + more):
        log.store(ReaderStamp(READERS[0], number + 1, number), range(2 * number, 2 * number + 2))
    if restarts:
        log.close()
        log = DeliveryLog(tmp_path, delivered=2 * (DELIVERIES_KEPT + more), create=False)
    assert log.find(ReaderStamp(READERS[0], more, 0)) is None
    assert log.find(ReaderStamp(READERS[0], more + 1, 0)) == range(2 * more, 2 * more + 2)
    log.store(ReaderStamp(READERS[1], 1, 0), range(9_999, 10_000))
    assert log.find(ReaderStamp(READERS[0], more + 1, 0)) is None
    assert log.find(ReaderStamp(READERS[0], more + 2, 0)) is not None
    log.close()


def test_a_number_that_is_stored_again_is_as_new_as_its_last_draw(tmp_path: Path) -> None:
    log = DeliveryLog(tmp_path, delivered=0, create=True)
    again = ReaderStamp(READERS[1], 1, 0)
    log.store(again, range(1))
    for number in range(1, DELIVERIES_KEPT + 2):
        is_again = number == DELIVERIES_KEPT - 1
        stamp = again if is_again else ReaderStamp(READERS[0], number, 0)
        log.store(stamp, range(number, number + 1))
    for _ in range(2):
        assert log.find(again) == range(DELIVERIES_KEPT - 1, DELIVERIES_KEPT)
        log.close()
        log = DeliveryLog(tmp_path, delivered=DELIVERIES_KEPT + 2, create=False)
    log.close()


@pytest.mark.parametrize(("field", "value"), [("sequence", -1), ("received", -1), ("first", -1), ("first", 7)])
def test_an_impossible_entry_is_refused(tmp_path: Path, field: str, value: int) -> None:
    log = DeliveryLog(tmp_path, delivered=0, create=True)
    log.store(ReaderStamp(READERS[0], 1, 0), range(5))
    log._entries[field][0] = value
    log.close()
    with pytest.raises(ValueError, match=r"deliveries\.bin: entry 0 is invalid: .*; the file is corrupt"):
        DeliveryLog(tmp_path, delivered=5, create=False)


@pytest.mark.parametrize("was_killed", [False, True])
def test_a_queue_of_an_earlier_version_gets_one(tmp_path: Path, was_killed: bool) -> None:
    """A server that was killed while it created the file left it empty."""
    if was_killed:
        (tmp_path / "deliveries.bin").touch()
    log = DeliveryLog(tmp_path, delivered=100, create=False)
    assert list(log.unconfirmed()) == []
    log.close()
