"""Frames of the local socket survive arbitrary fragmentation."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_proto.frames import (
    CHUNK_BYTES,
    HEAD_BYTES,
    FrameError,
    FrameKind,
    FrameParser,
    FrameTooLongError,
    frame_head,
)

LIMIT = 200_000
CONTENTS = st.binary(max_size=40) | st.integers(0, LIMIT).map(lambda size: bytes(range(256)) * (size // 256))
FRAMES = st.lists(st.tuples(st.sampled_from(FrameKind), CONTENTS), max_size=12)


def wire(frames: list[tuple[FrameKind, bytes]]) -> bytes:
    return b"".join(frame_head(len(content), kind) + content for kind, content in frames)


def feed(parser: FrameParser, data: bytes, *, is_busy: bool = False) -> list[tuple[FrameKind, bytes]]:
    """Frames that are taken while these bytes arrive; if ``is_busy``, only once there is no space left."""
    taken = []
    while data:
        if parser.has_space:
            space = parser.space()
            count = min(len(space), len(data))
            space[:count] = data[:count]
            parser.received(count)
            data = data[count:]
        if not is_busy or not parser.has_space:
            taken += taken_by(parser)
    return taken


def taken_by(parser: FrameParser) -> list[tuple[FrameKind, bytes]]:
    return [(kind, bytes(content)) for kind, content in iter(parser.take, None)]


@given(
    frames=FRAMES,
    cuts=st.lists(st.floats(0, 1), max_size=30),
    is_busy=st.booleans(),
    chunk_bytes=st.sampled_from([1 << 10, 1 << 15, CHUNK_BYTES]),
    may_grow=st.booleans(),
)
def test_any_cutting_of_the_bytes_gives_the_same_frames(
    frames: list[tuple[FrameKind, bytes]], cuts: list[float], is_busy: bool, chunk_bytes: int, may_grow: bool
) -> None:
    data = wire(frames)
    places = [0, *sorted(round(cut * len(data)) for cut in cuts), len(data)]
    parser, got = FrameParser(LIMIT, chunk_bytes), []
    parser.may_grow = lambda: may_grow
    for start, end in itertools.pairwise(places):
        got += feed(parser, data[start:end], is_busy=is_busy)
    assert got + taken_by(parser) == frames


@given(frames=FRAMES, size=st.sampled_from([40, 1 << 16, LIMIT]), missing=st.integers(1, 47))
def test_a_frame_that_is_cut_off_is_not_taken(frames: list[tuple[FrameKind, bytes]], size: int, missing: int) -> None:
    last = frame_head(size) + bytes(size)
    parser = FrameParser(LIMIT)
    assert feed(parser, wire(frames) + last[:-missing]) == frames
    assert feed(parser, last[-missing:]) == [(FrameKind.MESSAGE, bytes(size))]


def test_a_long_frame_is_kept_while_later_ones_arrive() -> None:
    parser = FrameParser(LIMIT)
    feed(parser, wire([(FrameKind.MESSAGE, bytes(LIMIT))])[:-1])
    space = parser.space()
    assert len(space) == 1
    space[0] = 7
    parser.received(1)
    taken = parser.take()
    assert taken is not None
    assert feed(parser, wire([(FrameKind.STATUS, bytes([9]) * LIMIT)])) == [(FrameKind.STATUS, bytes([9]) * LIMIT)]
    assert bytes(taken[1]) == bytes(LIMIT - 1) + bytes([7])


def test_the_longest_frame_is_taken_and_a_longer_one_refused_before_its_content_comes() -> None:
    parser = FrameParser(LIMIT)
    with pytest.raises(FrameTooLongError, match=r"at most 200000 bytes, got one of 200001"):
        feed(parser, wire([(FrameKind.MESSAGE, bytes(LIMIT))]) + frame_head(LIMIT + 1))
    with pytest.raises(FrameTooLongError, match=r"at most 200000 bytes, got one of 200001"):
        parser.take()


@pytest.mark.parametrize("kind", [2, 255, 2**32 - 1])
def test_a_kind_that_is_not_known_is_refused(kind: int) -> None:
    with pytest.raises(FrameError, match="kind"):
        feed(FrameParser(LIMIT), struct.pack("<II", 3, kind) + b"abc")


def test_the_head_is_two_little_endian_numbers_of_four_bytes() -> None:
    assert frame_head(0x01020304, FrameKind.STATUS) == bytes([4, 3, 2, 1, 1, 0, 0, 0])
    assert HEAD_BYTES == 8


def test_frames_that_nobody_takes_are_bounded() -> None:
    """Otherwise, a peer that never pauses would fill the memory while its first request waits."""
    parser = FrameParser(1000)
    arrived = 0
    while parser.has_space:
        space = parser.space()
        count = min(1008, len(space))
        space[:count] = (frame_head(1000) + bytes(1000))[:count]
        parser.received(count)
        arrived += count
    assert arrived == CHUNK_BYTES


def test_a_full_chunk_is_received_into_again_when_all_its_frames_are_taken() -> None:
    """Otherwise, each few short frames that are taken cost a copy of the chunk and a small read."""
    parser, frame = FrameParser(LIMIT), frame_head(0)
    space = parser.space()
    space[:] = frame * (len(space) // len(frame))
    parser.received(len(space))
    takes = itertools.takewhile(lambda _: not parser.has_space, iter(parser.take, None))
    assert len(list(takes)) == len(space) // len(frame)
    assert parser.has_space
