"""The metrics tell the same as Stats, over every data path."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from replay_proto.steps import Transitions
from replay_proto.v1 import replay_pb2
from replay_server.storage.runs import GOES_ON

from tests.support.caller import SAME_HOST, Caller, LearnStream, make_draw, make_update, wire_only
from tests.support.deadlines import wait_until
from tests.support.flow import rate_limiter
from tests.support.http_port import FLAGS, Scrape, get, scrape
from tests.support.refusals import refused
from tests.support.server_process import ServerProcess
from tests.support.wire_runs import step_runs

ALL_DATA_PATHS = True
WRITER = b"0123456789abcdef"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with an HTTP port, shared by this module."""
    folder = tmp_path_factory.mktemp("seen")
    process = ServerProcess(folder / "log", "--memory-dir", str(folder), *FLAGS, forked=True)
    yield process
    process.kill()


@pytest.fixture
def caller(seen: ServerProcess, call: Callable[[ServerProcess], Caller]) -> Caller:
    """A caller over the data path of the test."""
    return call(seen)


def assert_equal_to_stats(metrics: Scrape, stats: replay_pb2.TableStats) -> None:
    """Check everything that both report."""
    name = stats.table.config.name
    expected = {
        "replay_table_rows": stats.table.size,
        "replay_table_capacity_rows": stats.table.config.capacity,
        "replay_table_bytes": stats.bytes,
        "replay_rows_inserted_total": stats.table.inserted,
        "replay_inserts_repeated_total": stats.repeated_inserts,
        "replay_priorities_updated_total": stats.updated,
        "replay_updates_stale_total": stats.stale,
        "replay_batch_staleness_updates_count": stats.batches,
        "replay_batch_staleness_updates_sum": stats.batches_ahead,
        "replay_copies_overtaken_total": stats.overtaken,
        "replay_failed_syncs_total": stats.failed_syncs,
        "replay_unsynced_rows": stats.unsynced,
        "replay_lost_rows": stats.lost,
    }
    assert {metric: metrics.table(metric, name) for metric in expected} == expected
    by_path = {path: metrics.table("replay_rows_sampled_total", name, path=path) for path in ("reply", "files")}
    assert by_path == {"reply": stats.sampled - stats.sampled_same_host, "files": stats.sampled_same_host}
    may_wait_for = ("rows", "samples", "inserts") if stats.HasField("rate_limiter") else ("rows",)
    waiting = {what: waits(metrics, "replay_calls_waiting", name, what) for what in may_wait_for}
    assert waiting == dict.fromkeys(waiting, 0) | {wait.waited_for: wait.calls for wait in stats.waits}


def waits(metrics: Scrape, metric: str, table: str, waited_for: str) -> float:
    """A sample about calls that wait."""
    return metrics.table(metric, table, **{"for": waited_for})


def test_counters_equal_stats(caller: Caller, seen: ServerProcess, data_path: str) -> None:
    table = caller.create(capacity=50)
    table.insert(range(30))
    for _ in range(3):
        table.insert(range(40), writer_id=WRITER, sequence=1)
    table.sample(17)
    stream = LearnStream(table)
    stream.ask(draw=make_draw(7), batches=3, update=make_update([0, 60, 60, -1], [1.0, 2.0, 3.0, 4.0]))
    stream.close()
    with pytest.raises(StopIteration):
        stream.receive()
    table.update([69, 68, 67, 19, 70], np.ones(5))
    stats = table.stats()
    assert (stats.sampled, stats.stale, stats.repeated_inserts, stats.batches) == (17 + 21, 4, 2, 3)
    assert (stats.sampled_same_host > 0) == (data_path == SAME_HOST)
    metrics = scrape(seen)
    assert_equal_to_stats(metrics, stats)
    assert metrics.table("replay_table_drawable_rows", table.name) == 50


def test_calls_are_counted_by_status(caller: Caller, seen: ServerProcess) -> None:
    table = caller.create()

    def counts(method: str) -> dict[str, float]:
        metrics = scrape(seen)
        codes = ("OK", "FAILED_PRECONDITION", "INVALID_ARGUMENT")
        found = {code: metrics.method("grpc_server_handled_total", method, grpc_code=code) for code in codes}
        names = ("started_total", "msg_received_total", "msg_sent_total", "handling_seconds_count")
        return found | {name: metrics.method(f"grpc_server_{name}", method) for name in names}

    before = counts("Sample")
    with refused("TABLE_EMPTY"):
        table.sample(1)
    table.insert(range(5))
    with refused("INVALID_FIELD"):
        table.sample(0)
    for _ in range(3):
        table.sample(2)
    after = counts("Sample")
    assert {name: after[name] - before[name] for name in after} == {
        "OK": 3,
        "FAILED_PRECONDITION": 1,
        "INVALID_ARGUMENT": 1,
        "started_total": 5,
        "msg_received_total": 5,
        "msg_sent_total": 3,
        "handling_seconds_count": 3,
    }
    assert scrape(seen).has("grpc_server_handled_total", grpc_method="Sample", grpc_code="INTERNAL")
    stats = {method.method: method for method in caller.server_stats().methods}["Sample"]
    assert (stats.calls, stats.errors) == (
        after["OK"],
        after["FAILED_PRECONDITION"] + after["INVALID_ARGUMENT"],
    )


def test_streams_are_counted_by_how_they_end(caller: Caller, seen: ServerProcess) -> None:
    table = caller.create()

    def counts() -> dict[str, float]:
        metrics = scrape(seen)
        codes = ("OK", "FAILED_PRECONDITION", "CANCELLED")
        found = {
            code: metrics.method("grpc_server_handled_total", "Learn", "bidi_stream", grpc_code=code) for code in codes
        }
        return {**found, "started": metrics.method("grpc_server_started_total", "Learn", "bidi_stream")}

    before = counts()
    refused_stream = LearnStream(table)
    with refused("TABLE_EMPTY"):
        refused_stream.ask(draw=make_draw(1))
    table.insert(range(5))
    closed = LearnStream(table)
    closed.ask(draw=make_draw(1))
    closed.ask(draw=make_draw(1))
    closed.close()
    with pytest.raises(StopIteration):
        closed.receive()
    expected = {"OK": 1, "FAILED_PRECONDITION": 1, "CANCELLED": 0, "started": 2}

    def difference() -> dict[str, float]:
        after = counts()
        return {name: after[name] - before[name] for name in after}

    wait_until(lambda: difference() == expected, "the streams have ended")


def test_a_stream_that_is_refused_for_a_limit_is_counted(
    start_server: Callable[..., ServerProcess], call: Callable[[ServerProcess], Caller]
) -> None:
    server = start_server(*FLAGS, "--max-streams", "1")
    table = call(server).create()
    table.insert(range(5))
    first = LearnStream(table)
    first.ask(draw=make_draw(1))
    with refused("TOO_LARGE", limit=1, got=2):
        LearnStream(table).ask(draw=make_draw(1))
    metrics = scrape(server)
    assert metrics.method("grpc_server_started_total", "Learn", "bidi_stream") == 2
    assert metrics.method("grpc_server_handled_total", "Learn", "bidi_stream", grpc_code="RESOURCE_EXHAUSTED") == 1
    first.ask(draw=make_draw(1))


@wire_only
def test_a_waiting_draw_is_seen_and_its_wait_measured(caller: Caller, seen: ServerProcess) -> None:
    table = caller.create()
    started = table.begin_sample(1, wait_s=60.0)
    wait_until(lambda: waits(scrape(seen), "replay_calls_waiting", table.name, "rows") == 1, "a draw waits")
    assert waits(scrape(seen), "replay_wait_seconds_count", table.name, "rows") == 0
    table.insert([1])
    started.result()
    metrics = scrape(seen)
    assert waits(metrics, "replay_calls_waiting", table.name, "rows") == 0
    assert waits(metrics, "replay_wait_seconds_count", table.name, "rows") == 1
    assert waits(metrics, "replay_wait_seconds_sum", table.name, "rows") > 0
    assert not metrics.has("replay_wait_seconds_count", table=table.name, **{"for": "inserts"})  # they cannot wait


@wire_only
def test_a_waiting_insert_and_its_rate_limiter_are_seen(caller: Caller, seen: ServerProcess) -> None:
    table = caller.create(rate_limiter=rate_limiter(1, 2.0, (-1.0, 4.0)))
    table.insert([1])
    table.insert([2])
    started = table.begin_insert([3], wait_s=60.0)
    wait_until(lambda: waits(scrape(seen), "replay_calls_waiting", table.name, "inserts") == 1, "an insert waits")
    metrics = scrape(seen)
    assert_equal_to_stats(metrics, table.stats())
    names = ("replay_limiter_difference", "replay_limiter_difference_min", "replay_limiter_difference_max")
    assert [metrics.table(name, table.name) for name in names] == [4.0, -1.0, 4.0]
    table.sample(2)
    started.result()
    metrics = scrape(seen)
    assert waits(metrics, "replay_wait_seconds_count", table.name, "inserts") == 1
    assert not metrics.has("replay_wait_seconds_count", table=table.name, **{"for": "room"})  # only queues get full


@wire_only
def test_a_table_of_steps_shows_rows_that_cannot_be_drawn(caller: Caller, seen: ServerProcess) -> None:
    table = caller.create(item=Transitions(n_step=2))
    table.insert(range(4), runs=step_runs([(7, 0, 0, 4, GOES_ON)]))
    stats, metrics = table.stats(), scrape(seen)
    assert stats.steps.pending > 0
    for name in ("drawable", "pending", "broken"):
        assert metrics.table(f"replay_table_{name}_rows", table.name) == getattr(stats.steps, name)


@wire_only
def test_a_dropped_table_disappears_and_a_new_one_starts_at_zero(caller: Caller, seen: ServerProcess) -> None:
    table = caller.create()
    table.insert(range(7))
    assert table.name in scrape(seen).labelled("table")
    table.drop()
    assert table.name not in scrape(seen).labelled("table")
    caller.create(table.name)
    assert scrape(seen).table("replay_rows_inserted_total", table.name) == 0


@wire_only
def test_only_tables_add_samples(caller: Caller, seen: ServerProcess) -> None:
    caller.create().insert([1])
    text = get(seen, "/metrics").text
    caller.create().insert([1])
    grown = Scrape(get(seen, "/metrics").text)
    assert grown.names == Scrape(text).names
    added = len(get(seen, "/metrics").text.splitlines()) - len(text.splitlines())
    assert 0 < added < 40


@wire_only
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing: apt-get install prometheus")
def test_promtool_has_nothing_to_say_about_the_metrics(caller: Caller, seen: ServerProcess) -> None:
    table = caller.create(rate_limiter=rate_limiter(1, 2.0, (-1.0, 4.0)))
    table.insert([1])
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=get(seen, "/metrics").text, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
