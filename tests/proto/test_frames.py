"""Frames of the local socket survive arbitrary fragmentation."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_proto.frames import HEAD_BYTES, FrameError, FrameKind, FrameParser, FrameTooLongError, frame_head

FRAMES = st.lists(st.tuples(st.sampled_from(FrameKind), st.binary(max_size=40)), max_size=12)
LIMIT = 40


def wire(frames: list[tuple[FrameKind, bytes]]) -> bytes:
    return b"".join(frame_head(len(content), kind) + content for kind, content in frames)


def taken_by(parser: FrameParser) -> list[tuple[FrameKind, bytes]]:
    return list(iter(parser.take, None))


@given(frames=FRAMES, cuts=st.lists(st.floats(0, 1), max_size=30))
def test_any_cutting_of_the_bytes_gives_the_same_frames(
    frames: list[tuple[FrameKind, bytes]], cuts: list[float]
) -> None:
    data = wire(frames)
    places = [0, *sorted(round(cut * len(data)) for cut in cuts), len(data)]
    parser, got = FrameParser(LIMIT), []
    for start, end in itertools.pairwise(places):
        parser.feed(memoryview(data)[start:end])
        got += taken_by(parser)
    assert got == frames
    assert parser.waiting_bytes == 0


@given(frames=FRAMES, missing=st.integers(1, 47))
def test_a_frame_that_is_cut_off_is_not_taken(frames: list[tuple[FrameKind, bytes]], missing: int) -> None:
    last = frame_head(40) + bytes(40)
    parser = FrameParser(LIMIT)
    parser.feed(wire(frames) + last[:-missing])
    assert taken_by(parser) == frames
    assert parser.waiting_bytes == len(last) - missing
    parser.feed(last[-missing:])
    assert taken_by(parser) == [(FrameKind.MESSAGE, bytes(40))]


def test_the_longest_frame_is_taken_and_a_longer_one_refused_before_its_content_comes() -> None:
    parser = FrameParser(LIMIT)
    parser.feed(frame_head(LIMIT) + bytes(LIMIT) + frame_head(LIMIT + 1))
    assert parser.take() == (FrameKind.MESSAGE, bytes(LIMIT))
    for _ in range(2):
        with pytest.raises(FrameTooLongError, match=r"at most 40 bytes, got one of 41"):
            parser.take()


@pytest.mark.parametrize("kind", [2, 255, 2**32 - 1])
def test_a_kind_that_is_not_known_is_refused(kind: int) -> None:
    parser = FrameParser(LIMIT)
    parser.feed(struct.pack("<II", 3, kind) + b"abc")
    with pytest.raises(FrameError, match="kind"):
        parser.take()


def test_the_head_is_two_little_endian_numbers_of_four_bytes() -> None:
    assert frame_head(0x01020304, FrameKind.STATUS) == bytes([4, 3, 2, 1, 1, 0, 0, 0])
    assert HEAD_BYTES == 8


def test_a_peer_that_never_pauses_does_not_fill_the_memory() -> None:
    """Its bytes never end at a frame boundary, so a partial frame is always pending."""
    frame = frame_head(1000) + bytes(1000)
    stream = frame * 3000
    parser, longest = FrameParser(1000), 0
    for start in range(0, len(stream), 1500):
        parser.feed(stream[start : start + 1500])
        taken_by(parser)
        longest = max(longest, len(parser._received))
    assert longest < 10_000
