"""Writers' records compared with a dict, with restarts at any commit point."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_proto.v1 import replay_pb2
from replay_server.errors import RequestError
from replay_server.storage.writer_records import INSERTS_KEPT, WRITERS_KEPT, WriterRecords

WRITERS = [bytes([number]) * 16 for number in range(4)]


class Oracle:
    """The expected records: every insert, in order."""

    def __init__(self) -> None:
        self.inserted = 0
        self.inserts: dict[bytes, dict[int, tuple[int, int]]] = {}

    def store(self, writer: bytes, count: int) -> tuple[int, int]:
        """Record a writer's next insert; return its sequence number and first key."""
        mine = self.inserts.setdefault(writer, {})
        sequence, first = len(mine) + 1, self.inserted
        mine[sequence] = (first, count)
        self.inserted += count
        return sequence, first

    def forget_after(self, inserted: int) -> None:
        """Forget inserts that were not committed before the server died."""
        self.inserted = inserted
        for writer, mine in list(self.inserts.items()):
            kept = {sequence: (first, count) for sequence, (first, count) in mine.items() if first + count <= inserted}
            self.inserts[writer] = kept
            if not kept:
                del self.inserts[writer]

    def check(self, records: WriterRecords) -> None:
        """Check every answer about every writer."""
        for writer in WRITERS:
            mine = self.inserts.get(writer, {})
            last = len(mine)
            for sequence in range(1, last + 1):
                if sequence > last - INSERTS_KEPT:
                    assert records.find(writer, sequence) == mine[sequence]
                else:
                    assert refusal(records, writer, sequence) == replay_pb2.ERROR_REASON_SEQUENCE_TOO_OLD
            assert records.find(writer, last + 1) is None
            for sequence in (last + 2, last + 100):
                expected = replay_pb2.ERROR_REASON_SEQUENCE_GAP if mine else replay_pb2.ERROR_REASON_WRITER_UNKNOWN
                assert refusal(records, writer, sequence) == expected


def refusal(records: WriterRecords, writer: bytes, sequence: int) -> replay_pb2.ErrorReason.ValueType:
    """Reason of an insert's refusal."""
    with pytest.raises(RequestError) as error:
        records.find(writer, sequence)
    return error.value.reason


def open_records(folder: Path, inserted: int) -> WriterRecords:
    """The records as a restarted server finds them."""
    return WriterRecords(folder, inserted=inserted, create=False)


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(st.tuples(st.sampled_from(WRITERS), st.integers(1, 50)), st.just("restart")), min_size=1, max_size=80
    )
)
def test_records_say_what_a_dict_says(operations: list[tuple[bytes, int] | str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        records, oracle = WriterRecords(Path(folder), inserted=0, create=True), Oracle()
        for operation in operations:
            if isinstance(operation, str):
                records.close()
                records = open_records(Path(folder), oracle.inserted)
            else:
                writer, count = operation
                sequence, first = oracle.store(writer, count)
                records.store(writer, sequence, first, count)
        oracle.check(records)
        records.close()


@settings(max_examples=60)
@given(
    inserts=st.lists(st.tuples(st.sampled_from(WRITERS), st.integers(1, 9)), min_size=1, max_size=60),
    uncommitted=st.integers(0, 3),
    more=st.lists(st.sampled_from(WRITERS), max_size=20),
)
def test_records_beyond_the_commit_point_are_forgotten(
    inserts: list[tuple[bytes, int]], uncommitted: int, more: list[bytes]
) -> None:
    """A killed server had stored records of a few inserts that were never committed."""
    with tempfile.TemporaryDirectory() as folder:
        records, oracle = WriterRecords(Path(folder), inserted=0, create=True), Oracle()
        commit_points = [0]
        for writer, count in inserts:
            sequence, first = oracle.store(writer, count)
            records.store(writer, sequence, first, count)
            commit_points.append(oracle.inserted)
        committed = commit_points[max(0, len(commit_points) - 1 - uncommitted)]
        records.close()
        # An uncommitted record has overwritten the record of 16 inserts before, whose keys are lost.
        oracle.forget_after(committed)
        records = open_records(Path(folder), committed)
        for writer in WRITERS:
            last = len(oracle.inserts.get(writer, {}))
            assert records.find(writer, last + 1) is None
            for sequence in range(max(1, last - INSERTS_KEPT + 1 + uncommitted), last + 1):
                assert records.find(writer, sequence) == oracle.inserts[writer][sequence]
        for writer in more:
            sequence, first = oracle.store(writer, 1)
            records.store(writer, sequence, first, 1)
            assert records.find(writer, sequence) == (first, 1)
        records.close()


def test_the_writer_that_was_silent_longest_is_forgotten(tmp_path: Path) -> None:
    records = WriterRecords(tmp_path, inserted=0, create=True)
    ids = [number.to_bytes(16, "big") for number in range(WRITERS_KEPT + 2)]
    for key, writer in enumerate(ids[:WRITERS_KEPT]):
        records.store(writer, 1, key, 1)
    records.store(ids[0], 2, WRITERS_KEPT, 1)
    records.store(ids[WRITERS_KEPT], 1, WRITERS_KEPT + 1, 1)
    assert refusal(records, ids[1], 2) == replay_pb2.ERROR_REASON_WRITER_UNKNOWN
    assert records.find(ids[0], 2) == (WRITERS_KEPT, 1)
    records.close()
    records = open_records(tmp_path, WRITERS_KEPT + 2)
    assert refusal(records, ids[1], 2) == replay_pb2.ERROR_REASON_WRITER_UNKNOWN
    assert records.find(ids[0], 2) == (WRITERS_KEPT, 1)
    records.store(ids[WRITERS_KEPT + 1], 1, WRITERS_KEPT + 2, 1)
    assert refusal(records, ids[2], 2) == replay_pb2.ERROR_REASON_WRITER_UNKNOWN
    assert records.find(ids[3], 1) == (3, 1)
    records.close()


def test_a_forgotten_writer_leaves_nothing_to_the_one_in_its_place(tmp_path: Path) -> None:
    records = WriterRecords(tmp_path, inserted=0, create=True)
    for sequence in range(1, 10):
        records.store(b"a" * 16, sequence, sequence - 1, 1)
    for number in range(WRITERS_KEPT):
        records.store(number.to_bytes(16, "big"), 1, 9 + number, 1)
    newest = (WRITERS_KEPT - 1).to_bytes(16, "big")
    records.close()
    records = open_records(tmp_path, 9 + WRITERS_KEPT)
    assert records.find(newest, 2) is None
    assert refusal(records, newest, 9) == replay_pb2.ERROR_REASON_SEQUENCE_GAP
    records.close()
