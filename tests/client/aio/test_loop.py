"""The client for asyncio as a part of its event loop: it leaves the loop to others, and ends when it is closed."""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import pickle
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import replay_client
from replay_client import (
    ClosedError,
    ConcurrentUseError,
    InvalidArgumentError,
    ServerUnavailableError,
    UnauthenticatedError,
    aio,
)
from replay_client._transport.local_calls import FrameMethod, LocalAddress
from replay_client.aio import _frames
from replay_client.aio._connection import MessageStream
from replay_client.aio._frames import FrameStream

from tests.client.conftest import COLUMNS
from tests.client.numbered import row, rows
from tests.support.access import ALL, Authority, tls_flags, write_usual_tokens
from tests.support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]

LONGEST_TICK_S = 0.005
LONGEST_SHARE = 0.1
"""Of the CPU time of many calls that begin at once. In seconds, it would be a limit on the speed of the machine."""
INSERTS = 256
TRIES = 5

ABSENT = {
    "ReplayClient": {"keep_alive", "shards"},
    "Table": {"loader"},
    "Writer": {
        *("abort", "flush_until", "inserted"),
        *("is_failing", "is_table_gone", "shards_version", "writing"),
    },
}
"""Public names that have no counterpart for asyncio."""
OMITTED = {
    "rows": {"progress"},
    "episodes": {"progress"},
    "verify_checkpoint": {"partial"},  # of several servers
    "cancel": {"is_waited_for"},
}
"""Arguments without a counterpart, by method."""
KINDS = ["ReplayClient", "Table", "Sampler", "MixedSampler", "Writer", "WriterStream", "RowReader"]


@pytest.mark.parametrize("kind", KINDS)
def test_names_and_arguments_are_those_of_the_synchronous_client(kind: str) -> None:
    theirs, ours = getattr(replay_client, kind), getattr(aio, kind)
    public = {name for name in dir(theirs) if not name.startswith("_")} - ABSENT.get(kind, set())
    assert public == {name for name in dir(ours) if not name.startswith("_")}
    for name in public:
        method = inspect.getattr_static(theirs, name)
        if inspect.isfunction(method):
            expected = {
                parameter.name: (parameter.kind, parameter.default)
                for parameter in inspect.signature(method).parameters.values()
                if parameter.name not in OMITTED.get(name, ())
            }
            given = inspect.signature(getattr(ours, name)).parameters.values()
            assert {each.name: (each.kind, each.default) for each in given} == expected, f"{kind}.{name}"


async def longest_tick_s(work: Callable[[], Awaitable[object]]) -> float:
    """The longest iteration of the loop while ``work`` runs, in CPU time, so that other processes do not count."""
    longest, last = 0.0, time.thread_time()
    task = asyncio.ensure_future(work())
    while not task.done():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    await task
    return longest


async def longest_share(work: Callable[[], Awaitable[object]]) -> float:
    """The longest iteration of the loop while ``work`` runs, as a share of the CPU time of all iterations."""
    began = time.thread_time()
    longest = await longest_tick_s(work)
    return longest / (time.thread_time() - began)


@pytest.fixture
def frozen() -> Iterator[None]:
    """Exempts what was imported so far from garbage collections, which would stop the loop for tens of milliseconds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.timed
@pytest.mark.usefixtures("frozen")
def test_256_inserts_at_once_leave_the_loop_to_others(server: ServerProcess) -> None:
    async def main() -> None:
        async with aio.ReplayClient(server.address) as client:
            table = await client.create_table("ticks", columns=COLUMNS, capacity=100_000)
            await table.insert(rows([0]))
            ticks = [
                await longest_share(lambda: asyncio.gather(*(table.insert(rows([n])) for n in range(INSERTS))))
                for _ in range(TRIES)
            ]
            assert await table.size() == 1 + TRIES * INSERTS
            assert median(ticks) <= LONGEST_SHARE
            await table.drop()

    asyncio.run(main())


@pytest.mark.timed
@pytest.mark.usefixtures("frozen")
def test_a_writer_that_never_waits_leaves_the_loop_to_others(server: ServerProcess) -> None:
    async def main() -> None:
        async with aio.ReplayClient(server.address) as client:
            table = await client.create_table("ticks", columns=COLUMNS, capacity=100_000)

            async def write() -> None:
                async with table.writer(block_rows=100) as writer:
                    for number in range(5000):
                        await writer.append(**row(number))

            assert median([await longest_tick_s(write) for _ in range(TRIES)]) <= LONGEST_TICK_S
            await table.drop()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["sampler", "tensors", "mixed", "reader"])
def test_calls_at_once_are_refused_but_the_first(server: ServerProcess, kind: str) -> None:
    async def main() -> None:
        async with aio.ReplayClient(server.address) as client:
            table = await client.create_table("at-once", columns=COLUMNS, capacity=100)
            await table.insert(rows(range(10)))
            iterators: dict[str, Any] = {
                "sampler": table.sampler(4, beta=0.4),
                "tensors": table.sampler(4, beta=0.4, device="cpu"),
                "mixed": await client.mixed_sampler({"at-once": 4}, beta=0.4),
                "reader": await table.rows(chunk=4),
            }
            iterator = iterators.pop(kind)
            async with asyncio.timeout(30):
                calls: list[Any] = [anext(iterator) for _ in range(5)]
                results: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
                assert [type(error) for error in results[1:]] == [ConcurrentUseError] * 4
                assert results[0].batch_size == (await anext(iterator)).batch_size == 4
            await table.drop()

    asyncio.run(main())


def test_closing_a_client_ends_all_that_waits(server: ServerProcess) -> None:
    async def main() -> None:
        client = aio.ReplayClient(server.address)
        table = await client.create_table("closing", columns=COLUMNS, capacity=1000)
        sampler, writer = table.sampler(4, beta=0.4, timeout_s=60.0), table.writer()
        await writer.append(**row(0))
        await writer.flush()
        await table.reset()
        waiting = [asyncio.ensure_future(call) for call in (anext(sampler), table.sample(4, beta=0.4, timeout_s=60.0))]
        async with asyncio.timeout(30):
            while (await table.stats()).waiting < len(waiting):
                await asyncio.sleep(0.01)
            await client.close()
            results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [ClosedError, ClosedError]
        for call in (lambda: table.sample(1, beta=0.4), lambda: writer.append(**row(1)), client.tables):
            with pytest.raises(ClosedError):
                await call()
        sampler.cancel()
        await writer.close()  # the client has closed it
        assert {task.get_name() for task in asyncio.all_tasks()} == {asyncio.current_task().get_name()}  # type: ignore[union-attr]

    asyncio.run(main())


def test_closing_a_sampler_ends_the_task_that_waits_for_its_batch(server: ServerProcess) -> None:
    async def main() -> None:
        async with aio.ReplayClient(server.address) as client:
            limited: dict[str, Any] = {"min_size": 4, "samples_per_insert": 1.0, "error_buffer": 4.0}
            table = await client.create_table("left-waiting", columns=COLUMNS, capacity=1000, **limited)
            await table.insert(rows(range(4)))
            sampler = table.sampler(4, prefetch=1)

            async def learn() -> None:
                async for batch in sampler:
                    await sampler.update_priorities(batch, np.ones(4))

            learning = asyncio.create_task(learn())
            async with asyncio.timeout(30):
                while not (await table.stats()).waiting:
                    await asyncio.sleep(0.01)
                await sampler.close()
            with pytest.raises(ClosedError):
                await learning
            assert sampler.updated >= 4

    asyncio.run(main())


@pytest.mark.parametrize("work", ["learning", "learning ahead of the rows", "writing"])
def test_closing_a_client_while_a_task_works_on_takes_no_time_and_loses_nothing(
    server: ServerProcess, caplog: pytest.LogCaptureFixture, work: str
) -> None:
    async def main() -> None:
        client = aio.ReplayClient(server.address)
        limited: dict[str, Any] = {"min_size": 4, "samples_per_insert": 1.0, "error_buffer": 4.0}
        limited = limited if "ahead" in work else {}
        name = work.replace(" ", "-")
        table = await client.create_table(name, columns=COLUMNS, capacity=100_000, **limited)
        await table.insert(rows(range(8)))
        steps = 0

        async def learn() -> None:
            nonlocal steps
            sampler = table.sampler(4, prefetch=2)
            async for batch in sampler:
                await sampler.update_priorities(batch, np.ones(4))
                steps += 1

        async def write() -> None:
            nonlocal steps
            writer = table.writer()
            while True:
                await writer.append(**row(steps))
                steps += 1

        working = asyncio.create_task(write() if work == "writing" else learn())
        while steps < (2 if limited else 100):
            await asyncio.sleep(0.01)
        began = time.monotonic()
        await client.close()
        assert time.monotonic() - began < 2.0  # it has 5 s at most
        with pytest.raises(ClosedError):
            await asyncio.wait_for(working, 30)
        async with aio.ReplayClient(server.address) as other:
            await other.drop_table(name)

    asyncio.run(main())
    assert not caplog.messages


def test_streams_on_the_servers_host_use_the_local_socket_if_it_has_room(start_server: StartServer) -> None:
    server = start_server("--max-local-connections", "1")

    async def kinds(*, same_host: bool) -> list[type]:
        async with aio.ReplayClient(server.address, same_host=same_host) as client:
            table = await client.create_table(f"t-{same_host}", columns=COLUMNS, capacity=100)
            async with table.writer() as first, table.writer() as second:
                for number, writer in enumerate((first, second)):
                    await writer.append(**row(number))
                    await writer.flush()
                assert (await table.read([0, 1]))["number"].tolist() == [0, 1]
                return [type(writer._delivery._stream._stream) for writer in (first, second)]

    assert asyncio.run(kinds(same_host=False)) == [MessageStream, MessageStream]
    assert asyncio.run(kinds(same_host=True)) == [FrameStream, MessageStream]


def test_without_a_server_the_first_calls_say_so_soon() -> None:
    async def main() -> None:
        async with aio.ReplayClient("localhost:1", wait_for_server_s=0) as client:
            for _ in range(2):
                with pytest.raises(ServerUnavailableError, match="start one with `replay-server --port 1`"):
                    await client.tables()

    asyncio.run(main())


def test_a_client_waits_for_a_server_that_starts_later(start_server: StartServer) -> None:
    server = start_server()
    server.kill()

    async def main() -> None:
        async with aio.ReplayClient(server.address, wait_for_server_s=30) as client:
            calls = asyncio.gather(client.tables(), client.stats(), client.tables())
            await asyncio.to_thread(server.restart)
            assert (await calls)[0] == []

    asyncio.run(main())


def test_tokens_and_tls(start_server: StartServer, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tokens = str(write_usual_tokens(tmp_path / "tokens.toml"))
    server = start_server("--tokens", tokens, *tls_flags(authority.certify("server")))

    async def main() -> None:
        tls = authority.tls()
        async with aio.ReplayClient(server.address, token=ALL, tls=tls) as client:
            table = await client.create_table("mine-table", columns=COLUMNS, capacity=10)
            async with table.writer() as writer:
                await writer.append(**row(1))
            async with table.sampler(2, beta=0.4) as sampler:
                assert (await anext(sampler))["number"].tolist() == [1, 1]
        async with aio.ReplayClient(server.address, tls=tls) as stranger:
            with pytest.raises(UnauthenticatedError):
                await stranger.tables()

    asyncio.run(main())


@pytest.mark.parametrize("same_host", [False, True])
def test_a_client_belongs_to_one_loop(server: ServerProcess, same_host: bool) -> None:
    client = aio.ReplayClient(server.address, same_host=same_host)
    table = asyncio.run(client.create_table("one-loop", columns=COLUMNS, capacity=10))
    for call in (
        lambda: table.insert(rows([1])),
        table.size,
        lambda: table.to_arrow(),
        lambda: table.writer().append(**row(1)),
        lambda: anext(table.sampler(1, beta=0.4)),
    ):
        with pytest.raises(RuntimeError, match="another event loop"):
            asyncio.run(call())
    for each in (table.writer(), table.sampler(1, beta=0.4)):
        for send in (pickle.dumps, copy.copy):
            with pytest.raises(TypeError, match="cannot be pickled or copied"):
                send(each)
    with pytest.raises(InvalidArgumentError, match="timeout_s"):
        aio.ReplayClient(server.address, timeout_s=-1)


@pytest.mark.parametrize("copied", [lambda each: pickle.loads(pickle.dumps(each)), copy.copy, copy.deepcopy])
def test_a_copy_of_a_client_belongs_to_the_loop_that_uses_it_first(
    server: ServerProcess, copied: Callable[[aio.ReplayClient], aio.ReplayClient]
) -> None:
    client = aio.ReplayClient(server.address)

    async def insert(client: aio.ReplayClient) -> int:
        async with client:
            table = await client.create_table("copied", columns=COLUMNS, capacity=10, if_exists="open")
            for each in (table, pickle.loads(pickle.dumps(table))):
                await each.insert(rows([1]))
            return await table.size()

    assert asyncio.run(insert(client)) == 2
    assert asyncio.run(insert(copied(client))) == 4
    asyncio.run(copied(client).drop_table("copied"))


def test_a_copy_in_another_process_reads_its_token_there(
    start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server("--tokens", str(write_usual_tokens(tmp_path / "tokens.toml")))
    pickled = pickle.dumps(aio.ReplayClient(server.address, token=ALL))
    assert ALL.encode() not in pickled
    with pytest.raises(UnauthenticatedError, match="not pickled: set REPLAY_TOKEN"):
        asyncio.run(pickle.loads(pickled).tables())
    monkeypatch.setenv("REPLAY_TOKEN", ALL)
    assert asyncio.run(pickle.loads(pickled).tables()) == []


def test_tables_are_opened_and_listed_as_in_a_mapping_that_is_awaited(server: ServerProcess) -> None:
    async def main() -> None:
        async with aio.ReplayClient(server.address) as client:
            table = await client.create_table("named", columns=COLUMNS, capacity=10)
            assert (await client["named"]).uid == table.uid
            assert "named" in [name async for name in client]
            with pytest.raises(TypeError, match="async for"):
                _ = "named" in client
            with pytest.raises(TypeError, match="async for"):
                iter(client)
            await table.drop()

    asyncio.run(main())


def test_a_reader_that_was_canceled_goes_on(server: ServerProcess) -> None:
    async def main() -> None:
        async with aio.ReplayClient(server.address) as client:
            table = await client.create_table("reader", columns=COLUMNS, capacity=1000)
            await table.insert(rows(range(100)))
            reader, read = await table.rows(chunk=30), []
            for canceled in (True, False) * 4:
                part = asyncio.ensure_future(anext(reader))
                await asyncio.sleep(0)
                if canceled:
                    part.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await part
                else:
                    read += (await part)["number"].tolist()
            assert read == np.arange(100).tolist()
            with pytest.raises(StopAsyncIteration):
                await anext(reader)
            await table.drop()

    asyncio.run(main())


def test_a_sampler_goes_on_when_a_stopped_server_continues(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, were_alive = start_server(), list[bool]()
    is_alive = _frames._is_alive

    async def check(address: LocalAddress, method: FrameMethod) -> bool:
        were_alive.append(await is_alive(address, method))
        return were_alive[-1]

    monkeypatch.setattr(_frames, "_is_alive", check)
    monkeypatch.setattr(_frames, "SILENCE_S", 0.1)

    async def draw_from_a_stopped_server() -> int:
        async with aio.ReplayClient(server.address) as client:
            table = await client.create_table("t", columns=COLUMNS, capacity=10)
            await table.insert(rows([7]))
            async with table.sampler(4, beta=0.4, prefetch=1) as sampler:
                await anext(sampler)
                server.process.send_signal(signal.SIGSTOP)
                batch = asyncio.create_task(anext(sampler))
                while not were_alive:
                    await asyncio.sleep(0.01)
                server.process.send_signal(signal.SIGCONT)
                return int((await batch)["number"][0])

    assert asyncio.run(draw_from_a_stopped_server()) == 7
    assert not were_alive[0], "it is asked again if it continues slowly"


def test_updates_of_a_sampler_are_delivered_behind_a_refused_draw_and_without_any_draw(server: ServerProcess) -> None:
    async def main() -> None:
        async with aio.ReplayClient(server.address) as client:
            table = await client.create_table(
                "limited", columns=COLUMNS, capacity=100, min_size=4, samples_per_insert=1.0, error_buffer=4.0
            )
            await table.insert(rows(range(8)))
            async with table.sampler(4, beta=0.0, prefetch=1, timeout_s=1.0) as sampler:
                batch, _ = await anext(sampler), await anext(sampler)
                await sampler.request()  # waits, because all samples are drawn, and is refused
                await sampler.update_priorities(batch, np.full(4, 3.0))
            assert sampler.unacknowledged == 0
            assert ((await table.read(np.unique(batch.row_keys))).priorities == 3.0).all()
            async with aio.ReplayClient(server.address) as other:
                only_updates = (await other.table("limited")).sampler(4)
                await only_updates.update_priorities([0], [7.0])
            assert (await table.stats()).largest_priority == 7.0
            await table.drop()

    asyncio.run(main())


def test_updates_of_a_sampler_are_delivered_behind_a_draw_that_waits(server: ServerProcess) -> None:
    async def main() -> None:
        async with aio.ReplayClient(server.address) as client:
            table = await client.create_table(
                "limited", columns=COLUMNS, capacity=100, min_size=4, samples_per_insert=1.0, error_buffer=4.0
            )
            await table.insert(rows(range(8)))
            began = time.monotonic()
            async with table.sampler(4, beta=0.0) as sampler:
                batch, _ = await anext(sampler), await anext(sampler)
                await sampler.request()
                while not (await table.stats()).waiting:
                    await asyncio.sleep(0.01)
                await sampler.update_priorities(batch, np.full(4, 3.0))
            assert time.monotonic() - began < 10.0
            assert ((await table.read(np.unique(batch.row_keys))).priorities == 3.0).all()
            await table.drop()

    asyncio.run(main())
