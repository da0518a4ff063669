"""State under names: what is published comes back, whole and newest."""

from __future__ import annotations

import copy
import gc
import itertools
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from replay_client import (
    Column,
    DeadlineExceededError,
    InvalidArgumentError,
    Published,
    ReplayClient,
    ReplayError,
    TableNotFoundError,
)
from replay_client._operations.channel import WAITS_FOR_S
from replay_client._rows.published_state import KEPT, PublishedState, rows_ahead

from tests.support.caller import wire_only
from tests.support.deadlines import PATIENCE_S, wait_until
from tests.support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]
Connect = Callable[..., ReplayClient]
_numbers = itertools.count()

ARRAYS = st_numpy.arrays(
    st.sampled_from(["?", "i1", "u1", "<i4", ">i8", "<f2", "<f4", "<f8", "<c8"]),
    st_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)
STATES = st.recursive(ARRAYS, lambda part: st.dictionaries(st.text(max_size=5), part, max_size=4), max_leaves=8)


@pytest.fixture
def name(client: ReplayClient) -> Iterator[str]:
    """A name under which nothing was published yet."""
    unused = f"channel-{next(_numbers)}"
    yield unused
    if unused in client:
        client.drop_table(unused)


def assert_same(found: Any, published: Any) -> None:
    """Check that two states have the same bits, dtypes and nesting."""
    if isinstance(published, dict):
        assert list(found) == list(published)
        for key in published:
            assert_same(found[key], published[key])
    else:
        assert found.dtype == published.dtype.newbyteorder("<")
        assert found.shape == published.shape
        assert found.astype(found.dtype).tobytes() == published.astype(found.dtype).tobytes()
        assert found.flags.writeable


@settings(max_examples=40, deadline=None)
@given(state=st.dictionaries(st.text(max_size=5), STATES, min_size=1, max_size=4))
def test_what_is_published_comes_back_bit_by_bit(client: ReplayClient, state: dict[str, Any]) -> None:
    state["an array"] = np.arange(3)  # of which a state has at least one
    name = f"channel-{next(_numbers)}"
    assert client.publish(name, state) == 1
    version, values = client.latest(name)
    assert version == 1
    assert_same(values, state)
    client.drop_table(name)


def test_the_newest_of_many_is_read(client: ReplayClient, name: str) -> None:
    kept: list[Published] = []
    for number in range(1, 12):
        assert client.publish(name, {"w": np.full(50_000, number, np.float32)}) == number
        found = client.latest(name)
        assert found.version == number
        assert (found.values["w"] == number).all()
        kept.append(found)
    # They are the caller's to keep.
    assert [float(each.values["w"][-1]) for each in kept] == list(range(1, 12))


@wire_only
def test_a_module_and_its_state_dict_are_the_same(client: ReplayClient, name: str) -> None:
    import torch  # not for the processes of other tests

    module = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 2))
    assert client.publish(name, module) == 1
    assert client.publish(name, module.state_dict()) == 2
    other = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 2))
    values = client.latest(name).values
    other.load_state_dict({key: torch.from_numpy(value) for key, value in values.items()})
    for mine, theirs in zip(other.state_dict().values(), module.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_reader_waits_for_the_first_and_for_newer_ones(client: ReplayClient, name: str) -> None:
    began, found = threading.Event(), queue.SimpleQueue[Published]()

    def follow() -> None:
        version = None
        for _ in range(3):
            began.set()
            found.put(client.latest(name, wait_newer=version, timeout_s=30.0))
            version = client.latest(name).version

    reader = threading.Thread(target=follow)
    reader.start()
    assert began.wait(PATIENCE_S)
    assert found.empty()
    for number in range(3):
        if number:
            wait_until(lambda: client.table(name).stats().waiting == 1, "the reader waits at the server")
        published = time.monotonic()
        assert client.publish(name, {"w": np.arange(number, number + 5)}) == number + 1
        newest = found.get(timeout=PATIENCE_S)
        assert (newest.version, newest.values["w"].tolist()) == (number + 1, list(range(number, number + 5)))
        # The server has told the reader: by itself, it would have looked again only when its call had ended.
        assert number == 0 or time.monotonic() - published < 0.8 * WAITS_FOR_S
    reader.join()


def test_time_limits_end_the_wait(client: ReplayClient, name: str) -> None:
    for timeout_s in (0, 0.7):
        with pytest.raises(TableNotFoundError, match=f"nothing was published under {name!r} within {timeout_s} s; "):
            client.latest(name, timeout_s=timeout_s)
    client.publish(name, {"w": 1.0})
    for timeout_s in (0, 0.2):
        began = time.monotonic()
        with pytest.raises(DeadlineExceededError, match="nothing but version 1 was published under"):
            client.latest(name, wait_newer=1, timeout_s=timeout_s)
        assert timeout_s <= time.monotonic() - began < timeout_s + 2.0
    client.table(name).reset()
    with pytest.raises(DeadlineExceededError, match=r"^nothing was published"):
        client.latest(name, timeout_s=0)
    assert client.publish(name, {"w": 2.0}) == 2
    assert client.latest(name, wait_newer=1, timeout_s=0).version == 2


@wire_only
@pytest.mark.parametrize("known", [None, 1])
def test_the_time_limit_holds_when_the_server_hangs(
    start_server: StartServer, connect: Connect, known: int | None
) -> None:
    server = start_server()
    client = connect(server)
    client.publish("w", {"w": 1.0})
    client.latest("w")
    server.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(DeadlineExceededError):
        client.latest("w", wait_newer=known, timeout_s=0.5)
    assert 0.5 <= time.monotonic() - began < 10.0  # the client's default is 30 s
    server.process.send_signal(signal.SIGCONT)
    assert client.latest("w").version == 1


@pytest.mark.parametrize(
    ("inserted", "own", "expected"),
    [
        ("abab" + "abab", "a", 0),  # no row is missing, and a began first
        ("abab" + "abab", "b", 4),
        ("baaa" + "bab", "a", 1),  # b lacks its last row
        ("aabab" + "bcbccc" + "a", "a", 0),
        ("aabab" + "bcb" + "a", "a", 3),  # c does not mix with a, but with b
        ("aababbcbccca", "b", 4),
        ("aababbcbccca", "c", 8),
        ("aababbcbccca" + "aa", "b", 2),  # a is inserted again
        ("aababbcbccca" + "aaaa", "b", 0),
        ("aababbcbccca" + "aaaa", "c", 4),
        ("aababbcbccca" + "aaaa" + "bbbb", "c", 0),
        ("xx" + "abab" + "abab", "b", 4),  # x was evicted in part
        ("xyx" + "aaaa", "z", 0),
        ("x" + "yyyy" + "abab" + "abab", "a", 0),  # the publisher of x has ended
    ],
)
def test_publications_that_mix_are_repeated_in_the_order_in_which_they_began(
    inserted: str, own: str, expected: int
) -> None:
    """Each letter is a row of a publication with 4 parts."""
    parts = np.array([inserted[:place].count(letter) % 4 for place, letter in enumerate(inserted)], np.int32)
    if inserted.startswith("xx"):
        parts[:2] += 2
    assert rows_ahead(parts, np.array([ord(letter) for letter in inserted], np.uint64), 4, ord(own)) == expected


@wire_only
@pytest.mark.parametrize("publishers", [2, 3])
def test_publishers_of_one_name_take_turns(
    client: ReplayClient, name: str, server: ServerProcess, publishers: int
) -> None:
    """Each publication takes several inserts, between which those of the others come."""
    rounds, others = 10, threading.Barrier(publishers)
    errors = queue.SimpleQueue[ReplayError]()

    def publish(number: int) -> None:
        with ReplayClient(server.address) as mine:
            for _ in range(rounds):
                others.wait(PATIENCE_S)
                try:
                    mine.publish(name, {"w": np.full(1_200_000, number, np.float64)})
                except ReplayError as error:
                    errors.put(error)

    client.publish(name, {"w": np.zeros(1_200_000)})
    threads = [threading.Thread(target=publish, args=(number,)) for number in range(publishers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert errors.empty()
    found = client.latest(name).values["w"]
    assert (found == found[0]).all()


@wire_only
def test_a_reader_notices_a_publication_after_its_name_was_dropped(
    client: ReplayClient, name: str, server: ServerProcess
) -> None:
    """Such as when a server without data directory was restarted: versions begin at 1 again."""
    client.publish(name, {"w": 1.0})
    with ReplayClient(server.address) as actor:
        known = actor.latest(name).version
        client.drop_table(name)
        assert client.publish(name, {"w": 2.0}) == known
        assert actor.latest(name, wait_newer=known, timeout_s=20.0).values["w"] == 2.0
        with pytest.raises(DeadlineExceededError):
            actor.latest(name, wait_newer=known, timeout_s=0.2)


def test_files_of_dropped_names_are_closed(client: ReplayClient) -> None:
    def publish_and_drop(count: int) -> None:
        for number in range(count):
            unused = f"dropped-{number}"
            client.publish(unused, {"w": np.zeros(100_000)})
            client.latest(unused)
            client.drop_table(unused)
        gc.collect()

    publish_and_drop(2)
    before = len(os.listdir("/proc/self/fd"))
    publish_and_drop(10)
    assert len(os.listdir("/proc/self/fd")) <= before + 2


@wire_only
def test_a_name_that_was_dropped_begins_anew(client: ReplayClient, name: str) -> None:
    for _ in range(3):
        client.publish(name, {"w": 1.0})
    assert client.latest(name).version == 3
    client.drop_table(name)
    assert client.publish(name, {"other": np.arange(3)}) == 1
    found = client.latest(name, wait_newer=3)
    assert (found.version, list(found.values)) == (1, ["other"])


@wire_only
@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            {"a": {"w": np.zeros((3, 2), np.float32)}},
            r"values\['b'\]: expected int64\[\], as in version 1 .*, got none",
        ),
        (
            {"a": {"w": np.zeros((2, 3), np.float32)}, "b": 1},
            r"values\['a'\]\['w'\]: expected float32\[3,2\], as in version 1 of 'channel-\d+'; publish under",
        ),
        (
            {"a": {"w": np.zeros((3, 2))}, "b": 1},
            r"values\['a'\]\['w'\]: expected float32\[3,2\], .* got float64\[3,2\]",
        ),
        (
            {"a": {"w": np.zeros((3, 2), np.float32)}, "b": 1, "c": np.zeros(100_000)},
            r"values\['c'\]: expected no such array, as in version 1 .* got float64\[100000\]",
        ),
    ],
)
def test_another_structure_is_refused_by_name(client: ReplayClient, name: str, state: Any, message: str) -> None:
    client.publish(name, {"a": {"w": np.ones((3, 2), np.float32)}, "b": 1})
    with pytest.raises(InvalidArgumentError, match=message):
        client.publish(name, state)
    found = client.latest(name)
    assert found.version == 1
    # The order of the names does not matter.
    assert client.publish(name, {"b": 2, "a": {"w": np.ones((3, 2), np.float32)}}) == 2


@wire_only
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "values: expected at least one array, got none"),
        ({"a": {}}, "values: expected at least one array, got none"),
        (np.zeros(3), "values: expected a mapping of names to arrays, or a torch module, got ndarray"),
        (None, "values: expected a mapping of names to arrays, or a torch module, got NoneType"),
        ({"a": {"b": "text"}}, r"values\['a'\]\['b'\]: expected an array, a tensor or a number, got str"),
        ({"a": {"b": None}}, r"values\['a'\]\['b'\]: expected an array, a tensor or a number, got NoneType"),
        ({"a": [[1], [1, 2]]}, r"values\['a'\]: expected an array, a tensor or a number, got list"),
        ({"a": {3: 1.0}}, r"values\['a'\]: expected names as keys, got 3"),
    ],
)
def test_what_is_no_array_is_refused_by_name(client: ReplayClient, name: str, values: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        client.publish(name, values)
    assert name not in client


@wire_only
def test_another_table_of_the_name_is_not_touched(client: ReplayClient, name: str) -> None:
    table = client.create_table(name, columns={"x": Column("float32")}, capacity=10)
    for call in (lambda: client.publish(name, {"w": 1.0}), lambda: client.latest(name)):
        with pytest.raises(InvalidArgumentError, match="name: expected a name that no other table has, got 'channel"):
            call()
    assert len(table) == 0
    with pytest.raises(InvalidArgumentError, match="wait_newer: expected the version"):
        client.latest(name, wait_newer="newest")  # type: ignore[arg-type]


def test_readers_see_whole_publications_although_they_come_fast(client: ReplayClient, name: str) -> None:
    """Each is larger than a request, so that its parts arrive one after another."""
    stop, failures, seen = threading.Event(), list[BaseException](), [list[int](), list[int]()]

    def publish() -> None:
        try:
            for number in itertools.count():
                client.publish(name, {"a": np.full(700_000, number, np.int64), "b": number})
                if stop.wait(0.05):
                    return
        except BaseException as error:
            failures.append(error)

    def read(versions: list[int]) -> None:
        try:
            while not stop.is_set():
                known = versions[-1] if versions else None
                try:
                    found = client.latest(name, wait_newer=known, timeout_s=1.0)
                except (DeadlineExceededError, TableNotFoundError):  # the publisher has stopped, or not begun
                    continue
                versions.append(found.version)
                numbers = np.unique(found.values["a"])
                assert numbers.tolist() == [int(found.values["b"])] == [found.version - 1]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=publish), *(threading.Thread(target=read, args=(each,)) for each in seen)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: bool(failures) or min(map(len, seen)) >= 15, "both readers have read 15 publications")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    for versions in seen:
        assert versions == sorted(set(versions))


@wire_only
def test_several_publishers_are_told_apart(client: ReplayClient, name: str) -> None:
    versions, failures = list[int](), list[BaseException]()

    def publish(number: int) -> None:
        try:
            for _ in range(10):
                versions.append(client.publish(name, {"w": np.full(20_000, number, np.int64)}))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if name in client:
            assert len(np.unique(client.latest(name).values["w"])) == 1
    assert failures == []
    assert len(set(versions)) == len(versions) == 30
    assert client.latest(name).version == max(versions)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_reader_that_waits_gets_the_whole_although_the_publisher_pauses(
    client: ReplayClient, name: str, is_replaced: bool
) -> None:
    """It reads the first parts before the others are there, or before another program publishes."""
    known = client.publish(name, {"w": np.zeros(100_000)})
    table, parts = client.table(name), PublishedState({"w": np.ones(100_000)}).rows()
    found = queue.SimpleQueue[Published]()
    reader = threading.Thread(target=lambda: found.put(client.latest(name, wait_newer=known, timeout_s=30.0)))
    reader.start()
    wait_until(lambda: table.stats().waiting == 1, "the reader waits")
    table.insert({column: values[:-1] for column, values in parts.items()})
    wait_until(lambda: table.stats().waiting == 1, "the reader waits for the last part")
    assert found.empty()
    if is_replaced:
        client.publish(name, {"w": np.full(100_000, 2.0)})
    else:
        table.insert({column: values[-1:] for column, values in parts.items()})
    newest = found.get(timeout=PATIENCE_S)
    reader.join()
    assert newest.version == client.latest(name).version > known
    assert np.unique(newest.values["w"]).tolist() == [2.0 if is_replaced else 1.0]


def publish_for_ever(address: str, name: str, first: int) -> None:
    """Publish numbers in large arrays until this process is killed."""
    client = ReplayClient(address)
    for number in itertools.count(first):
        client.publish(name, {"a": np.full(700_000, number, np.int64)})


def is_torn(table: Any) -> bool:
    """Whether the newest row is not the last part of a publication."""
    newest = table.read([table.describe().inserted - 1])
    return bool(newest["part"][0] != table.capacity // KEPT - 1)


def stop_within_a_publication(table: Any, pid: int) -> None:
    """Suspend the publisher while the server has only some parts of a publication."""
    while True:
        if is_torn(table):
            os.kill(pid, signal.SIGSTOP)
            if is_torn(table):
                return
            os.kill(pid, signal.SIGCONT)


@wire_only
def test_a_killed_publisher_leaves_whole_publications(client: ReplayClient, name: str) -> None:
    context = multiprocessing.get_context("spawn")
    version, torn = 0, 0
    for start in range(30):
        if torn and start >= 3:
            break
        process = context.Process(target=publish_for_ever, args=(client.address, name, 1_000 * start))
        process.start()
        assert process.pid is not None
        try:
            version = client.latest(name, wait_newer=version or None, timeout_s=30).version
            stop_within_a_publication(client.table(name), process.pid)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        # The server may find the rest of the publication in its socket buffer, although the publisher is gone.
        torn += is_torn(client.table(name))
        found = client.latest(name)
        assert found.version >= version
        assert len(np.unique(found.values["a"])) == 1
        version = found.version
    assert torn > 0
    assert client.publish(name, {"a": np.zeros(700_000, np.int64)}) > version
    assert client.latest(name, wait_newer=version).values["a"].max() == 0


def test_copies_of_a_client_read_on(client: ReplayClient, name: str) -> None:
    for number in range(2 * KEPT + 2):  # all slots of the table were written
        client.publish(name, {"w": float(number)})
    client.latest(name)
    copies = [copy.copy(client), pickle.loads(pickle.dumps(client))]
    client.publish(name, {"w": -1.0})
    for each in copies:
        assert each.latest(name).values["w"] == -1.0
        each.close()


ALL_DATA_PATHS = True
