"""Clients on the server's host that copy rows from a table's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from replay_proto.owner import read_owner
from replay_proto.v1 import replay_pb2

from tests.support.caller import CalledTable, Caller, LearnStream, make_draw
from tests.support.refusals import refused
from tests.support.rows import WHOLE, values_in
from tests.support.server_process import ServerProcess

NewTable = Callable[..., CalledTable]


def owner_of(table: CalledTable) -> bytes:
    """The id of the server in its owner record."""
    record = read_owner(Path(table.describe().directory).parents[1]).record
    assert record is not None
    return record.id


def copied(table: CalledTable, keys: NDArray[np.int64]) -> bytes:
    """Copy rows by key from the files, serialized as on the wire."""
    description = table.describe()
    columns = [
        np.fromfile(Path(description.directory) / f"column-{index:03d}.bin", np.uint8).reshape(description.slots, -1)
        for index in range(len(WHOLE))
    ]
    return b"".join(column[keys % description.slots].tobytes() for column in columns)


def sample(table: CalledTable, **same_host: object) -> replay_pb2.SampleResponse:
    """Draw 20 rows."""
    return table.stub.Sample(
        replay_pb2.SampleRequest(
            table=table.name,
            table_uid=table.describe().uid,
            draw=make_draw(20),
            same_host=replay_pb2.SameHost(**same_host),  # type: ignore[arg-type]
        )
    )


def test_who_names_the_server_copies_the_rows(new_table: NewTable) -> None:
    table = new_table(capacity=50)
    for first in range(0, 300, 60):
        table.insert(np.arange(first, first + 60) * 3)
    answer = sample(table, owner_id=owner_of(table))
    keys = np.frombuffer(answer.batch.keys, np.int64)
    assert len(keys) == 20
    assert answer.rows == b""
    assert values_in(copied(table, keys)).tolist() == (keys * 3).tolist()
    stats = table.stats()
    assert (stats.sampled, stats.sampled_same_host, stats.overtaken) == (20, 20, 0)


@pytest.mark.parametrize("owner_id", [b"", b"0" * 16, b"short", b"x" * 100_000])
def test_who_does_not_is_sent_them(table: CalledTable, owner_id: bytes) -> None:
    table.insert(np.arange(60) * 3)
    answer = sample(table, owner_id=owner_id)
    assert values_in(answer.rows).tolist() == (np.frombuffer(answer.batch.keys, np.int64) * 3).tolist()
    assert table.stats().sampled_same_host == 0


def test_who_does_not_say_which_table_it_has_mapped_is_sent_them(table: CalledTable) -> None:
    table.insert(range(5))
    same_host = replay_pb2.SameHost(owner_id=owner_of(table))
    answer = table.stub.Sample(replay_pb2.SampleRequest(table=table.name, draw=make_draw(20), same_host=same_host))
    assert len(answer.rows) == 20 * WHOLE.row_bytes


def test_a_learner_copies_rows_too(table: CalledTable) -> None:
    table.insert(np.arange(60) * 3)
    stream = LearnStream(table)
    stream.send_message(
        replay_pb2.LearnRequest(
            table=table.name,
            table_uid=table.describe().uid,
            draw=make_draw(10),
            batches=3,
            same_host=replay_pb2.SameHost(owner_id=owner_of(table)),
        )
    )
    answer = stream.receive()
    assert answer.rows == b""
    for batch in answer.batches:
        keys = np.frombuffer(batch.keys, np.int64)
        assert values_in(copied(table, keys)).tolist() == (keys * 3).tolist()
    assert table.stats().sampled_same_host == 30
    stream.close()


def test_a_request_that_stands_in_for_one_that_was_overtaken_is_counted(table: CalledTable) -> None:
    table.insert([0])
    assert sample(table, owner_id=owner_of(table)).rows == b""
    assert len(sample(table, owner_id=owner_of(table), overtaken=True).rows) == 20 * WHOLE.row_bytes
    stats = table.stats()
    assert (stats.sampled, stats.overtaken, stats.sampled_same_host) == (20, 1, 20)
    assert [(bar.at_least, bar.at_most) for bar in stats.times_sampled] == [(16, 31)]  # 20 times


def test_a_learner_s_batch_that_was_overtaken_counts_once(table: CalledTable) -> None:
    table.insert(range(5))
    stream = LearnStream(table)
    for overtaken in (False, True):
        same_host = replay_pb2.SameHost(owner_id=owner_of(table), overtaken=overtaken)
        stream.send(draw=make_draw(10), same_host=same_host, ahead=2)
        stream.receive()
    stats = table.stats()
    assert (stats.sampled, stats.batches, stats.batches_ahead) == (10, 1, 2)
    stream.close()


def test_a_refusal_of_an_empty_table_counts_nothing(table: CalledTable) -> None:
    owner_id = owner_of(table)
    before = table.state()
    with refused("TABLE_EMPTY"):
        sample(table, owner_id=owner_id, overtaken=True)
    assert table.state() == before


def test_the_header_says_which_rows_may_be_being_written(new_table: NewTable) -> None:
    table = new_table(capacity=50)
    for first in range(0, 300, 60):
        table.insert(range(first, first + 60))
    words = np.fromfile(Path(table.describe().directory) / "header.bin", "<i8")
    assert words[:2].tolist() == [300, 300]
    slots = table.describe().slots
    assert all(key + slots >= words[0] for key in table.live_keys())
    table.reset()
    assert np.fromfile(Path(table.describe().directory) / "header.bin", "<i8")[2] == 300


def test_files_keep_their_place_while_the_table_lives_and_go_with_it(new_table: NewTable) -> None:
    table = new_table()
    folder = Path(table.describe().directory)
    assert {path.name for path in folder.iterdir()} >= {"header.bin", "column-000.bin", "column-002.bin"}
    table.drop()
    assert not folder.exists()


def test_a_server_can_be_told_not_to_offer_it(
    start_server: Callable[..., ServerProcess], call: Callable[[ServerProcess], Caller], tmp_path: Path
) -> None:
    table = call(start_server("--no-same-host", "--data-dir", str(tmp_path / "data"))).create()
    table.insert(range(5))
    assert table.describe().directory == ""
    record = read_owner(tmp_path / "data").record
    assert record is not None
    assert len(sample(table, owner_id=record.id).rows) == 20 * WHOLE.row_bytes
