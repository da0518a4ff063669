"""Loops in the background: a failure is logged, counted and shown, and the loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from replay_server.flow import background as supervising
from replay_server.flow.background import Background

from tests.server.http.test_serving import ask, served
from tests.support.http_port import get
from tests.support.server_process import ServerProcess

LOOP = "live page"


class Work:
    """Rounds that fail until they are repaired."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error
        self.rounds = 0

    async def once(self) -> None:
        self.rounds += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error

    async def again(self, rounds: int) -> None:
        """Wait for this many further rounds."""
        until = self.rounds + rounds + 1
        while self.rounds < until:
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising, "FIRST_PAUSE_S", 0.0)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))


@pytest.mark.parametrize(
    ("error", "has_traceback"), [(MemoryError(), False), (OSError(28, "full"), False), (ValueError("odd"), True)]
)
def test_a_loop_that_fails_is_logged_and_counted_and_goes_on(
    caplog: pytest.LogCaptureFixture, error: Exception, has_traceback: bool
) -> None:
    async def test() -> None:
        background, work = Background(), Work(error)
        background.repeat(LOOP, work.once)
        await work.again(3)
        loop = background.loops[LOOP]
        assert (loop.failures >= 3, loop.keeps_failing) == (True, True)
        work.error = None
        await work.again(1)
        assert not loop.keeps_failing
        await background.stop()
        rounds = work.rounds
        await asyncio.sleep(0)
        assert work.rounds == rounds

    run(test)
    first = caplog.records[0]
    assert first.getMessage().startswith("live page failed, 1 in a row; it continues in 0 s: ")
    assert (first.exc_info is not None) == has_traceback


def test_pauses_grow_while_a_loop_keeps_failing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervising, "FIRST_PAUSE_S", 1e-4)
    monkeypatch.setattr(supervising, "LONGEST_PAUSE_S", 3e-4)

    async def test() -> None:
        background, work = Background(), Work(ValueError("odd"))
        background.repeat(LOOP, work.once)
        await work.again(4)
        await background.stop()

    run(test)
    pauses = [message.split(" in ")[2].split(" s:")[0] for message in caplog.messages[:4]]
    assert pauses == ["0.0001", "0.0002", "0.0003", "0.0003"]


async def got(port: int, path: str) -> str:
    """The content of a successful reply."""
    reply = await ask(port, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    head, content = reply.decode().split("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 ")
    return content


def test_readiness_and_metrics_show_a_loop_that_keeps_failing(tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path) as (view, port):
            view.state, work = "ready", Work(MemoryError())
            view.background.repeat(LOOP, work.once)
            await work.again(3)
            assert (await got(port, "/readyz")).startswith("ready\nlive page keeps failing, ")
            found = {
                sample.name: sample.value
                for family in text_string_to_metric_families(await got(port, "/metrics"))
                for sample in family.samples
                if sample.labels.get("loop") == LOOP
            }
            assert found["replay_background_failures_total"] >= 3
            assert found["replay_background_failing"] == 1
            work.error = None
            await work.again(1)
            assert await got(port, "/readyz") == "ready\n"

    run(test)


def test_every_loop_of_a_server_is_supervised(start_server: Callable[..., ServerProcess], tmp_path: Path) -> None:
    checkpoints = ("--checkpoint-dir", str(tmp_path / "checkpoints"), "--checkpoint-every", "3600")
    server = start_server(
        "--data-dir", str(tmp_path / "data"), "--durability", "power", "--http-port", "0", *checkpoints
    )
    found = {
        sample.labels["loop"]
        for family in text_string_to_metric_families(get(server, "/metrics").text)
        for sample in family.samples
        if sample.name == "replay_background_failing"
    }
    assert found == {
        "accepting HTTP connections",
        "garbage collection",
        "health service",
        "live page",
        "periodic checkpoint",
        "syncing",
        "unfinished messages",
    }


def test_a_loop_goes_on_after_more_failures_than_a_pause_can_double() -> None:
    async def test() -> None:
        background, work = Background(), Work(OSError(28, "full"))
        background.repeat(LOOP, work.once)
        await work.again(1100)
        work.error = None
        await work.again(1)
        assert (background.loops[LOOP].failures >= 1100, background.loops[LOOP].in_a_row) == (True, 0)
        await background.stop()

    run(test)
