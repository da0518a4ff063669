"""A writer has one live stream per table."""

from __future__ import annotations

import pytest
from replay_server.rpc.call import Stream
from replay_server.rpc.handlers.inserts import WriterStreams

WRITER, TABLE, LATER_TABLE = b"w" * 16, b"t" * 16, b"u" * 16


class WatchedStream(Stream):
    """A stream that records why it was ended."""

    def __init__(self) -> None:
        self.refusals: list[str] = []
        super().__init__(lambda refusal: self.refusals.append(str(refusal)))


@pytest.fixture
def streams() -> WriterStreams:
    return WriterStreams()


def test_a_later_stream_of_a_writer_ends_the_earlier_one(streams: WriterStreams) -> None:
    first, second = WatchedStream(), WatchedStream()
    streams.claim(first, TABLE, WRITER)
    streams.claim(second, TABLE, WRITER)
    assert (len(first.refusals), len(second.refusals), len(streams)) == (1, 0, 1)


def test_a_stream_that_claims_again_ends_nobody(streams: WriterStreams) -> None:
    stream = WatchedStream()
    for _ in range(3):
        streams.claim(stream, TABLE, WRITER)
    assert (stream.refusals, len(streams)) == ([], 1)


def test_a_stream_that_moves_on_to_the_table_made_anew_leaves_no_claim_behind(streams: WriterStreams) -> None:
    """The stream names its table without a uid, and the table was dropped and recreated."""
    moved_on, other = WatchedStream(), WatchedStream()
    streams.claim(moved_on, TABLE, WRITER)
    streams.claim(moved_on, LATER_TABLE, WRITER)
    assert len(streams) == 1
    streams.claim(other, TABLE, WRITER)
    assert moved_on.refusals == []
    moved_on.close()
    other.close()
    assert len(streams) == 0


def test_a_stream_that_was_ended_takes_nothing_away_from_its_successor(streams: WriterStreams) -> None:
    first, second, third = WatchedStream(), WatchedStream(), WatchedStream()
    streams.claim(first, TABLE, WRITER)
    streams.claim(second, TABLE, WRITER)
    first.close()
    streams.claim(third, TABLE, WRITER)
    assert (len(first.refusals), len(second.refusals), len(third.refusals)) == (1, 1, 0)
