"""What fails unexpectedly in the background reaches the next call or the log, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any

import pytest
from replay_client import ReplayError, Table, aio
from replay_client._transport import long_waits, unclosed
from replay_client._transport.long_waits import LongWait
from replay_client._writing.outbox import SentBlock
from replay_client.sync.shards.drawing import away

from tests.client.numbered import row
from tests.support.deadlines import PATIENCE_S, wait_until
from tests.support.server_process import ServerProcess

ALL_DATA_PATHS = True


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages with rows cannot be built."""

    def refuse(_: SentBlock) -> None:
        raise MemoryError("none for a message")

    monkeypatch.setattr(SentBlock, "parts", refuse)


def test_a_writer_raises_what_keeps_its_rows_from_being_sent(table: Table, no_memory: None) -> None:
    writer = table.writer()
    writer.append(**row(1))
    with pytest.raises(ReplayError, match=r"none for a message|iterating requests"):
        writer.flush(timeout_s=PATIENCE_S)
    writer.abort()


def test_a_writer_on_an_event_loop_does_so_too(server: ServerProcess, table: Table, no_memory: None) -> None:
    async def write() -> None:
        async with aio.ReplayClient(server.address) as client:
            writer = (await client.table(table.name)).writer()
            await writer.append(**row(1))
            with pytest.raises(ReplayError, match="none for a message"):
                await writer.flush(timeout_s=PATIENCE_S)
            with pytest.raises(ReplayError, match="none for a message"):
                await writer.close()

    asyncio.run(asyncio.wait_for(write(), PATIENCE_S))


def test_a_shard_that_is_away_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Shard:
        looks = 0

        def poll(self) -> bool:
            self.looks += 1
            if self.looks == 1:
                raise MemoryError
            return True

    monkeypatch.setattr(away, "_LOOK_EVERY_S", 0.0)
    shard: Any = Shard()
    away._look(weakref.ref(shard), threading.Event())
    assert shard.looks == 2
    assert "looking for a server that is away continues" in caplog.text


def test_long_waits_are_told_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[LongWait] = []

    def tell(wait: LongWait) -> None:
        looks.append(wait)
        if len(looks) == 1:
            raise MemoryError
        wait.is_told = True

    monkeypatch.setattr(long_waits, "WARN_AFTER_S", 0.0)
    monkeypatch.setattr(LongWait, "tell", tell)
    with LongWait("a test", lambda _: "for nothing"):
        wait_until(lambda: len(looks) == 2, "it is told")


class Unclosed:
    """Work that cannot be finished."""

    title = "writer of a test"
    is_done = False

    def dropped(self) -> None:
        unclosed.finish_in_thread(self)

    def deliver(self, deadline: float) -> None:
        raise MemoryError

    def finish(self, deadline: float) -> None:
        raise MemoryError


def test_one_that_cannot_be_finished_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left = [Unclosed(), Unclosed()]
    monkeypatch.setattr(unclosed, "_left", lambda: left)
    for finish in (unclosed._deliver_all_left, unclosed._finish_all):
        caplog.clear()
        finish()
        assert caplog.messages == ["an unclosed writer of a test could not be finished"] * 2


def test_a_thread_that_cannot_be_started_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    Unclosed().dropped()
    assert caplog.messages == [
        "an unclosed writer of a test is finished at the end of the process: can't start new thread"
    ]
