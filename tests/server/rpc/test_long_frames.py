"""Long frames on the local socket take no more memory than their caller's share, and end if they are not finished."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from replay_proto.frames import CHUNK_BYTES
from replay_proto.schema import Column, Schema
from replay_proto.v1 import replay_pb2
from replay_server.errors import RequestError
from replay_server.flow.bounds import Bounds
from replay_server.rpc.local_socket import long_frames
from replay_server.rpc.local_socket.long_frames import LongFrame, budget_of_long_frames

from tests.support.access import ALL, MINE, WRITE, write_usual_tokens
from tests.support.caller import Caller, table_config
from tests.support.deadlines import wait_until
from tests.support.frame_stub import HEAD, MESSAGE, STATUS, FrameLink, hello_for
from tests.support.server_process import ServerProcess
from tools.attacks.attack import bearer

LONG = 8 << 20
ROW_BYTES = 1 << 20
IN_THE_SOCKET = 1 << 20
"""More than the server's chunk and the kernel's buffers take."""
PATIENCE_S = 0.2


def send_some(link: FrameLink, size: int) -> int:
    """Send bytes as far as the server receives them; return how many."""
    sent, part = 0, bytes(1 << 16)
    link.socket.settimeout(PATIENCE_S)
    try:
        while sent < size:
            sent += link.socket.send(part[: size - sent])
    except TimeoutError:
        pass
    return sent


def test_long_frames_begin_as_far_as_the_share_of_their_caller_goes(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = start_server("--tokens", str(write_usual_tokens(tmp_path / "tokens.toml")))
    config = table_config(f"{MINE}table", capacity=10, schema=Schema({"x": Column("uint8", (ROW_BYTES,))}))
    with Caller(server.address) as caller, ExitStack() as stack:
        create = replay_pb2.CreateTableRequest(config=config)
        table = caller.stub.CreateTable(create, metadata=bearer(ALL)).table

        def greeted(token: str) -> FrameLink:
            link = FrameLink(table.socket)
            stack.callback(link.close)
            link.send(hello_for(table, "Write", authorization=f"Bearer {token}").SerializeToString())
            assert link.answer()
            return link

        links = [greeted(WRITE) for _ in range(4)]
        links[0].socket.sendall(HEAD.pack(LONG, MESSAGE) + bytes(LONG - 1))
        for link in links[1:]:
            link.socket.sendall(HEAD.pack(LONG, MESSAGE))
        sent = [send_some(link, LONG - 1) for link in links[1:]]
        assert max(sent) < IN_THE_SOCKET

        other = greeted(ALL)
        insertion = replay_pb2.Insertion(row_count=1, sequence=1)
        write = replay_pb2.WriteRequest(
            table=config.name, writer_id=bytes(16), insertion=insertion, rows=bytes(ROW_BYTES)
        )
        other.send(write.SerializeToString())
        assert replay_pb2.WriteResponse.FromString(other.answer()).keys[0].count == 1, "another caller has a share"

        links[0].socket.sendall(bytes(1))
        assert links[0].receive()[0] == STATUS, "it was complete, but no request"

        def go_on() -> int:
            for number, link in enumerate(links[1:]):
                sent[number] += send_some(link, LONG - 1 - sent[number])
            return max(sent)

        wait_until(lambda: go_on() == LONG - 1, "the next one has its turn")


def test_a_long_frame_that_is_not_finished_in_time_makes_room_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_frames, "BODY_S", 0.05)

    async def receive() -> None:
        budget = budget_of_long_frames(Bounds(max_request_bytes=LONG))
        refused: asyncio.Future[RequestError] = asyncio.get_running_loop().create_future()
        has_turn = asyncio.Event()
        first = LongFrame(budget, "caller", has_turn.clear, refused.set_result)
        second = LongFrame(budget, "caller", has_turn.set, lambda _: None)
        assert first.may_begin(LONG)
        assert first.may_begin(LONG), "it has begun"
        assert not second.may_begin(LONG)
        assert LongFrame(budget, "another caller", has_turn.clear, lambda _: None).may_begin(LONG)
        assert (await refused).reason == replay_pb2.ERROR_REASON_MESSAGE_UNFINISHED
        first.close()
        await has_turn.wait()
        assert second.may_begin(LONG)

    asyncio.run(receive())


def test_a_connection_that_ends_in_line_leaves_it() -> None:
    async def receive() -> None:
        budget = budget_of_long_frames(Bounds(max_request_bytes=LONG))
        frames = [LongFrame(budget, "caller", lambda: None, lambda _: None) for _ in range(2)]
        assert [frame.may_begin(LONG) for frame in frames] == [True, False]
        await asyncio.sleep(0)
        frames[1].close()
        await asyncio.sleep(0)
        for frame in frames:
            frame.close()
        assert budget.total == 0

    asyncio.run(receive())


def test_memory_for_frames_of_medium_length_is_of_the_same_share_until_the_connection_ends() -> None:
    async def receive() -> None:
        budget = budget_of_long_frames(Bounds(max_request_bytes=LONG))
        frames = [LongFrame(budget, "caller", lambda: None, lambda _: None) for _ in range(2 * LONG // CHUNK_BYTES + 1)]
        grown = [frame.may_grow() for frame in frames]
        assert grown[0]
        assert not grown[-1]
        assert budget.total == sum(grown) * CHUNK_BYTES
        for frame in frames:
            frame.close()
        assert budget.total == 0

    asyncio.run(receive())
