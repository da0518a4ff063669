"""The events of the live page of a server that shares its tables with others."""

from __future__ import annotations

import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from replay_client import ReplayClient, Tls
from replay_proto.v1 import replay_pb2
from replay_server.http.histograms import FRACTIONS, mixed_distributions
from replay_server.http.history import Counts, History, Meter
from replay_server.http.shards.channels import ASK_S

from tests.support.access import Authority, tls_flags, token_entry
from tests.support.caller import Caller
from tests.support.deadlines import PATIENCE_S, wait_until
from tests.support.events import Events, basic, events
from tests.support.http_port import FLAGS, get
from tests.support.refusals import refused
from tests.support.server_process import ServerProcess
from tests.support.service import ROWS, addresses, filled, start_service

StartServer = Callable[..., ServerProcess]
OWNER, READER = "owner-" + "x" * 20, "reader-" + "x" * 20


@pytest.fixture
def servers(start_server: StartServer) -> list[ServerProcess]:
    return start_service(start_server)


@pytest.fixture
def client(servers: list[ServerProcess]) -> Iterator[ReplayClient]:
    with ReplayClient(addresses(servers)) as made:
        yield made


def until(stream: Events, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first event about which something is so."""
    deadline = time.monotonic() + PATIENCE_S
    for figures in stream:
        if is_so(figures):
            return figures
        assert time.monotonic() < deadline, figures
    raise AssertionError("the stream has ended")


def rows_of(figures: dict[str, Any]) -> dict[str, int]:
    """Rows of the tables in an event."""
    return {table["name"]: table["rows"] for table in figures["tables"]}


def has_rows(count: int, name: str = "t") -> Callable[[dict[str, Any]], bool]:
    """Whether a table has so many rows."""
    return lambda figures: rows_of(figures).get(name) == count


def stats_calls(server: ServerProcess) -> int:
    """How often a server was asked for statistics, not counting this call."""
    with Caller(server.address) as caller:
        return caller.method("Stats").calls


def is_connected(server: ServerProcess, other: ServerProcess) -> bool:
    """Whether a server is connected to another."""
    port = int(other.address.rpartition(":")[2])
    connections = psutil.Process(server.process.pid).net_connections("tcp")
    return any(each.raddr and each.raddr.port == port for each in connections)


def test_the_page_of_any_server_shows_what_stats_says(servers: list[ServerProcess], client: ReplayClient) -> None:
    table = filled(client)
    batch = table.sample(500, beta=0.4)
    table.update_priorities(batch, batch["x"] % 7 + 1.0)
    stats = client.stats().tables["t"]
    for server in servers:
        before = client.stats().tables["t"].rates.inserted_per_s
        with events(server) as stream:
            figures = until(stream, lambda figures: rows_of(figures) == {"t": 600})
        (shown,) = figures["tables"]
        # The rate falls while nothing is inserted.
        assert before >= shown["inserted_per_s"] >= client.stats().tables["t"].rates.inserted_per_s
        assert {name: shown[name] for name in ("capacity", "inserted", "drawn", "updated", "stale", "bytes")} == {
            "capacity": 3000,
            "inserted": 600,
            "drawn": 500,
            "updated": stats.updated,
            "stale": stats.stale,
            "bytes": stats.bytes,
        }
        lines = [(line["id"], line["address"], line["state"], line["rows"]) for line in shown["shards"]]
        assert lines == [(id, each.address, "active", ROWS[id]) for id, each in enumerate(servers)]
        masses = [part.total_mass / stats.total_mass for part in stats.shards.values()]
        assert [line["mass"] for line in shown["shards"]] == pytest.approx(masses, rel=1e-5)
        assert sum(line["inserted_per_s"] for line in shown["shards"]) == pytest.approx(
            shown["inserted_per_s"], rel=1e-4
        )
        priorities = shown["priorities"]
        assert (priorities["least"], priorities["most"]) == (stats.smallest_priority, stats.largest_priority)
        assert sum(priorities["fractions"]) == pytest.approx(1.0, abs=1e-4)
        assert sum(shown["ages_s"]["fractions"]) == pytest.approx(1.0, abs=1e-4)
        assert (figures["problems"], len(figures["servers"])) == ([], 3)


def test_rates_of_all_servers_are_recorded_while_a_page_is_open(
    servers: list[ServerProcess], client: ReplayClient
) -> None:
    table = filled(client)
    with events(servers[0]) as stream:
        until(stream, has_rows(600))
        table.sample(1000, beta=0.4)
        until(stream, lambda figures: sum(figures["tables"][0]["points"]["drawn"]) > 0)
        until(stream, lambda figures: sum(figures["tables"][0]["points"]["drawn"]) == 0)
    points = get(servers[0], "/history?table=t").json()  # the page is closed, and opened again
    seconds = np.diff(points["at"], prepend=points["at"][0] - 1.0)
    assert float(np.dot(points["drawn"], seconds)) == pytest.approx(1000, rel=0.5)


def test_a_killed_server_is_away_and_comes_back(start_server: StartServer, tmp_path: Path) -> None:
    folders = iter(range(len(ROWS)))
    servers = start_service(lambda *flags: start_server(*flags, "--data-dir", str(tmp_path / f"data-{next(folders)}")))
    with ReplayClient(addresses(servers)) as client, events(servers[0]) as stream:
        table = filled(client)
        until(stream, has_rows(600))
        servers[1].kill()
        figures = until(stream, lambda figures: figures["problems"])
        (problem,), (shown,) = figures["problems"], figures["tables"]
        assert problem.startswith(f"shard 1 at {servers[1].address} has been away for ")
        assert problem.endswith(" (no answer): its rows are not counted")
        assert shown["waits"] == ["29 % of the mass is away"]  # 400 of 1400
        assert [line["state"] for line in shown["shards"]] == ["active", "away", "active"]
        assert (shown["rows"], shown["shards"][1]["rows"]) == (400, None)
        assert [each["state"] for each in figures["servers"]] == ["active", "away", "active"]
        table.sample(100, beta=0.4)
        until(stream, lambda figures: figures["tables"][0]["drawn"] >= 100)
        servers[1].restart()
        figures = until(stream, has_rows(600))
        assert (figures["problems"], figures["tables"][0]["waits"]) == ([], [])


def test_a_server_that_lost_its_tables_is_away(servers: list[ServerProcess], client: ReplayClient) -> None:
    filled(client)
    with events(servers[0]) as stream:
        until(stream, has_rows(600))
        servers[2].kill()
        servers[2].restart()
        figures = until(stream, lambda figures: any("lost its tables" in each for each in figures["problems"]))
        assert rows_of(figures) == {"t": 300}


def test_a_lost_shard_is_shown_with_its_rows(servers: list[ServerProcess], client: ReplayClient) -> None:
    table = filled(client)
    with events(servers[0]) as stream:
        until(stream, has_rows(600))
        with table.sampler(8, beta=0.4) as sampler:
            next(sampler)
            servers[1].kill()  # the learner reports what it knew
            wait_until(lambda: next(sampler) is not None and bool(client.stats().tables["t"].reports), "a report")
        client.mark_shard(1, state="lost")
        figures = until(stream, lambda figures: not figures["problems"] and len(figures["servers"]) == 2)
    (shown,) = figures["tables"]
    assert (shown["rows"], shown["lost"]) == (400, 200)
    assert [(line["id"], line["state"], line["rows"]) for line in shown["shards"]] == [
        (0, "active", 100),
        (1, "lost", 200),
        (2, "active", 300),
    ]


def test_a_hanging_server_delays_nothing_else(servers: list[ServerProcess], client: ReplayClient) -> None:
    table = filled(client)
    with events(servers[0]) as stream:
        until(stream, has_rows(600))
        servers[1].process.send_signal(signal.SIGSTOP)
        began, count = time.monotonic(), 0
        for figures in stream:
            count += 1
            if figures["problems"]:
                break
        assert count >= (time.monotonic() - began) / 2
        with events(servers[2]) as opened:  # a page that has never seen the hanging server
            opening = time.monotonic()
            first = opened.next()
            assert time.monotonic() - opening < ASK_S
        assert rows_of(first) == {"t": 400}
        servers[1].process.send_signal(signal.SIGCONT)
        until(stream, has_rows(600))
    table.drop()


def test_nothing_is_asked_without_pages_and_once_for_all_pages(
    servers: list[ServerProcess], client: ReplayClient
) -> None:
    filled(client)
    at_first = stats_calls(servers[1])
    with events(servers[0]) as stream, events(servers[0]) as second, events(servers[0]) as third:
        for each in (stream, second, third):
            until(each, has_rows(600))
        before = stats_calls(servers[1])
        frames = [next(iter(stream)) for _ in range(4)]
        assert len(frames) - 1 <= stats_calls(servers[1]) - before - 1 <= len(frames) + 1
        assert before > at_first
        assert is_connected(servers[0], servers[1])
    get(servers[0], "/metrics")
    # A server that asked every second would stay connected.
    wait_until(lambda: not is_connected(servers[0], servers[1]), "it disconnects from the others")


def write_tokens(path: Path, *readable: str) -> Path:
    """A file with a token for everything, and one that may read tables with these names."""
    reader = token_entry("reader", READER, ["read"], readable) if readable else ""
    path.write_text(token_entry("owner", OWNER, ["read", "write", "admin"]) + reader)
    return path


def test_a_token_sees_only_its_tables_of_all_servers(start_server: StartServer, tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path / "tokens.toml", "mine")
    servers = start_service(start_server, "--tokens", str(tokens))
    with ReplayClient(addresses(servers), token=OWNER) as client:
        for name in ("mine", "other"):
            filled(client, name)
    with events(servers[0], basic(OWNER)) as stream:
        assert until(stream, has_rows(600, "mine"))["tables"][1]["rows"] == 600
    with events(servers[0], basic(READER)) as stream:
        assert rows_of(until(stream, has_rows(600, "mine"))) == {"mine": 600}
    assert get(servers[0], "/history?table=other", headers=basic(READER)).status == 403


def test_a_page_shows_no_more_than_the_other_servers_tell_its_token(start_server: StartServer, tmp_path: Path) -> None:
    readable = (("mine",), ("elsewhere",), ())
    files = [write_tokens(tmp_path / f"tokens-{number}.toml", *names) for number, names in enumerate(readable)]
    numbers = iter(files)
    started = [start_server(*FLAGS, "--tokens", str(next(numbers))) for _ in files]
    here, elsewhere, unknown = started
    with ReplayClient(addresses(started), token=OWNER) as client:
        filled(client, "mine")
    rows = dict(zip(sorted(server.address for server in started), ROWS, strict=True))
    with events(here, basic(READER)) as stream:
        # Each server answers in its own time, and a page shows what has come.
        figures = until(stream, lambda figures: len(figures["problems"]) == 1 and bool(rows_of(figures)))
    assert rows_of(figures) == {"mine": rows[here.address]}
    assert unknown.address in figures["problems"][0]
    assert "it does not know this token" in figures["problems"][0]
    assert [each["state"] for each in figures["servers"] if each["address"] == elsewhere.address] == ["active"]


@pytest.mark.parametrize("is_mutual", [False, True])
def test_servers_with_tls_ask_each_other_with_tls(start_server: StartServer, tmp_path: Path, is_mutual: bool) -> None:
    authority = Authority(tmp_path / "authority")
    certified = authority.certify("server")
    tokens = write_tokens(tmp_path / "tokens.toml", "t")
    flags = [*tls_flags(certified, authority.ca if is_mutual else None), "--tokens", str(tokens)]
    servers = start_service(start_server, *flags, "--tls-ca", str(authority.ca))
    servers.append(start_server(*FLAGS, *flags))  # trusts nobody
    tls = authority.tls(certified if is_mutual else None)
    with ReplayClient(addresses(servers[:3], "localhost"), token=OWNER, tls=tls) as client:
        filled(client)
        client.set_shards(addresses(servers, "localhost").split(","))  # with an empty shard on the new server
    context = browser_context(tls)
    with events(servers[0], basic(READER), context) as stream:
        assert until(stream, has_rows(600))["problems"] == []
    with events(servers[3], basic(READER), context) as stream:
        figures = stream.next()
    assert (rows_of(figures), len(figures["problems"])) == ({"t": 0}, 4)
    assert all("its certificate is not trusted, see --tls-ca" in each for each in figures["problems"])
    assert READER not in servers[3].log()


def browser_context(tls: Tls) -> Any:
    """What a browser trusts, and presents."""
    context = ssl.create_default_context(cafile=tls.ca)
    if tls.cert is not None:
        context.load_cert_chain(tls.cert, tls.key)
    return context


def test_a_server_with_tls_sends_no_token_in_clear_text(start_server: StartServer, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    tokens = write_tokens(tmp_path / "tokens.toml", "t")
    server = start_server(*FLAGS, *tls_flags(authority.certify("server")), "--tokens", str(tokens))
    tls = authority.tls()
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def listen() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(5.0)
                heard.append(peer.recv(1 << 16))

        listening = threading.Thread(target=listen)
        listening.start()
        there = f"127.0.0.1:{listener.getsockname()[1]}"
        credentials = grpc.composite_channel_credentials(tls.credentials(), grpc.access_token_call_credentials(OWNER))
        with Caller(f"localhost:{server.port}", credentials=credentials) as caller:
            set_map(caller, f"localhost:{server.port}", there)
        with events(server, basic(READER), browser_context(tls)) as stream:
            until(stream, lambda figures: len(figures["problems"]) > 0)
        listening.join()
    assert heard[0][:1] == b"\x16"  # a TLS handshake
    assert READER.encode() not in heard[0]


def set_map(caller: Caller, *servers: str, uid: bytes = bytes(16), version: int = 1, retired: str = "") -> None:
    """Store the first shard map of a server."""
    shards = [
        replay_pb2.Shard(
            id=id,
            address=address,
            state=replay_pb2.SHARD_STATE_RETIRED if address == retired else replay_pb2.SHARD_STATE_ACTIVE,
        )
        for id, address in enumerate(servers)
    ]
    new = replay_pb2.ShardMap(uid=uid, version=version, shards=shards)
    caller.stub.SetShards(replay_pb2.SetShardsRequest(map=new))


def test_the_newest_map_counts(servers: list[ServerProcess], call: Callable[[ServerProcess], Caller]) -> None:
    first, second, _ = servers
    set_map(call(first), first.address, second.address)
    set_map(call(second), *(server.address for server in servers), version=2)
    with events(first) as stream:
        figures = until(stream, lambda figures: len(figures["servers"]) == 3)
    assert [each["address"] for each in figures["servers"]] == [server.address for server in servers]


@pytest.mark.parametrize("who_knows", ["both", "the other", "itself"])
def test_a_retired_server_shows_the_only_one_left(
    start_server: StartServer, call: Callable[[ServerProcess], Caller], who_knows: str
) -> None:
    retired, left = start_server(*FLAGS), start_server(*FLAGS)
    for server, rows, name in ((retired, 5, "itself"), (left, 7, "the other")):
        call(server).create("t").insert(range(rows))
        knows = who_knows in ("both", name)
        state: dict[str, Any] = {"version": 2, "retired": retired.address} if knows else {}
        set_map(call(server), retired.address, left.address, **state)
    with events(retired) as stream:
        until(stream, has_rows(7))
        for _ in range(3):
            figures = stream.next()
            assert (rows_of(figures), [each["id"] for each in figures["servers"]]) == ({"t": 7}, [1])


def test_when_no_server_answers_the_history_is_that_of_the_shard_shown(
    start_server: StartServer, call: Callable[[ServerProcess], Caller]
) -> None:
    here, there = start_server(*FLAGS), start_server(*FLAGS)
    call(there).create("gone").insert(range(3))
    set_map(call(here), there.address, "127.0.0.1:1")
    set_map(call(there), there.address, "127.0.0.1:1")
    with events(here) as stream:
        until(stream, has_rows(3, "gone"))
        there.kill()
        until(stream, lambda figures: len(figures["problems"]) == 2)
        assert get(here, "/history?table=gone").status == 404


def test_a_server_of_another_service_is_away(
    servers: list[ServerProcess], call: Callable[[ServerProcess], Caller]
) -> None:
    ours, theirs, _ = servers
    for server, name in ((ours, "ours"), (theirs, "theirs")):
        call(server).create(name)
    set_map(call(ours), ours.address, theirs.address)
    set_map(call(theirs), theirs.address, uid=b"1" * 16)
    with events(ours) as stream:
        figures = until(stream, lambda figures: len(figures["problems"]) > 0)
    assert "(it belongs to another service)" in figures["problems"][0]
    assert rows_of(figures) == {"ours": 0}


def test_quantiles_are_those_of_the_fractions(caller: Caller) -> None:
    table = caller.create()
    table.insert(range(5), priorities=[1.0, 2.0, 3.0, 4.0, 5.0])
    request = replay_pb2.StatsRequest(table=table.name, fractions=[0.25, 1.0])
    (stats,) = caller.stub.Stats(request).tables
    assert {each.fraction: each.value for each in stats.priorities} == {0.25: 2.0, 1.0: 5.0}
    assert [each.fraction for each in stats.ages_s] == [0.25, 1.0]
    for fractions in ([0.5, 0.5], [-0.1], [1.1], [float("nan")], np.linspace(0, 1, 130)):
        with refused("INVALID_FIELD", field="fractions"):
            caller.stub.Stats(replay_pb2.StatsRequest(fractions=fractions))
    table.drop()


def test_a_mixed_histogram_is_close_to_that_of_all_rows() -> None:
    random = np.random.default_rng(1)
    values = [random.lognormal(mean, 1.0, count) for mean, count in ((0.0, 3000), (3.0, 1000))]
    parts = [
        replay_pb2.TableStats(
            table=replay_pb2.TableDescription(size=len(each)),
            priorities=[
                replay_pb2.Quantile(fraction=fraction, value=np.quantile(each, fraction)) for fraction in FRACTIONS
            ],
        )
        for each in values
    ]
    mixed = mixed_distributions(parts)
    assert mixed["ages_s"] is None
    shown, everything = mixed["priorities"], np.concatenate(values)
    assert shown["logarithmic"]
    edges = np.geomspace(shown["low"], shown["high"], len(shown["fractions"]) + 1)
    exact = np.histogram(everything, edges)[0] / len(everything)
    assert shown["fractions"] == pytest.approx(exact, abs=0.02)
    assert shown["median"] == pytest.approx(np.median(everything), rel=0.05)


def test_a_restart_is_no_rate() -> None:
    now = iter([0.0, 1.0, 3.0, 4.0, 5.0])
    meter = Meter(lambda: next(now))
    assert meter.rates({b"a": Counts(10, 0, 0)}) == {}
    assert meter.rates({b"a": Counts(30, 4, 2), b"b": Counts(1, 1, 1)}) == {b"a": Counts(10, 2, 1)}
    assert meter.rates({b"a": Counts(30, 0, 0), b"b": Counts(1, 1, 1)}) == {b"b": Counts(0, 0, 0)}
    assert meter.rates({b"a": Counts(31, 0, 0)}) == {b"a": Counts(1, 0, 0)}
    history = History(now=lambda: 7.0)
    history.tick({b"a": None, b"b": Counts(1, 2, 3)})
    assert history.points(b"a")["at"] == []
    assert history.points(b"b") == {"at": [7.0], "inserted": [1.0], "drawn": [2.0], "updated": [3.0]}
