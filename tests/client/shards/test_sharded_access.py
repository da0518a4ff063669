"""Tables on several servers with TLS and tokens: everything works with the right ones, and errors name the server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from replay_client import (
    PermissionDeniedError,
    ReplayClient,
    ServerUnavailableError,
    Table,
    UnauthenticatedError,
)
from replay_client._shards.keys import shard_ids

from tests.client.shards.conftest import COLUMNS, in_order, shards_of
from tests.client.shards.test_sharded_draws import rows
from tests.client.test_cli import run
from tests.support.access import ALL, OTHER, READ, WRONG, Authority, tls_flags, tls_variables, token_entry
from tests.support.server_process import ServerProcess

Enter = Callable[..., ReplayClient]
EVERYTHING = ALL
"""The token of an operator."""
OWNER = OTHER
"""A token with all rights on the table ``mine``."""
LEARNER = READ
"""A token that may read and write the table ``mine``."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """The authority that the servers' certificates are from."""
    return Authority(tmp_path / "authority")


@pytest.fixture
def servers(start_server: Callable[..., ServerProcess], tmp_path: Path, authority: Authority) -> list[ServerProcess]:
    """Three servers with TLS and tokens, in the order of their shards."""
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        token_entry("operator", EVERYTHING, ["read", "write", "admin"])
        + token_entry("owner", OWNER, ["read", "write", "admin"], ["mine"])
        + token_entry("learner", LEARNER, ["read", "write"], ["mine"]),
        "utf-8",
    )
    flags = (*tls_flags(authority.certify("server")), "--tokens", str(tokens))
    return in_order(start_server(*flags, "--checkpoint-dir", str(tmp_path / f"saved-{each}")) for each in range(3))


@pytest.fixture
def enter(servers: list[ServerProcess], authority: Authority, reach: Enter) -> Enter:
    """Creates clients of the servers from a token."""
    return lambda token, **options: reach(servers, **{"token": token, "tls": authority.tls(), **options})


def make(client: ReplayClient, name: str = "mine") -> Table:
    return client.create_table(name, columns=COLUMNS, capacity=3000)


def test_everything_works_over_tls_with_tokens(enter: Enter, servers: list[ServerProcess]) -> None:
    operator = enter(EVERYTHING)
    operator.shards.set([server.address for server in servers])
    make(enter(OWNER))
    table = enter(LEARNER).table("mine")
    with table.writer(streams=6) as writer:
        for number in range(60):
            writer.append_all(number=np.full(6, number), obs=np.zeros((6, 3)))
            writer.end_episodes(np.full(6, number % 5 == 4))
    table.insert(rows(np.arange(40)))
    with table.sampler(64, beta=0.4) as sampler:
        batch = next(sampler)
        sampler.update_priorities(batch, np.ones(64))
        sampler.flush()
        assert sampler.stale == 0
    assert set(shard_ids(batch.row_keys).tolist()) == {0, 1, 2}
    assert table.update_priorities(batch, np.ones(64)).stale == 0
    assert len(table.read(batch.row_keys)["number"]) == batch.batch_size
    assert table.stats().size == table.inspect().looked_at == 400
    assert sorted(operator.checkpoint().parts) == [0, 1, 2]
    enter(OWNER).table("mine").drop()
    assert operator.tables() == []


def test_only_a_token_with_admin_on_all_tables_creates_and_changes_the_map(
    enter: Enter, servers: list[ServerProcess]
) -> None:
    addresses = [server.address for server in servers]
    lacking = f"server at {addresses[0]} refused the call: the token 'owner' lacks the right admin on all tables"
    with pytest.raises(PermissionDeniedError, match=lacking) as refusal:
        make(enter(OWNER))
    assert f"`replay shards set {','.join(addresses)}`" in refusal.value.__notes__[0]
    assert enter(EVERYTHING).shards.map() is None
    enter(EVERYTHING).shards.set(addresses)
    table = make(enter(OWNER))
    changes: list[Callable[[], object]] = [
        lambda: enter(OWNER).shards.mark(1, state="draining"),
        lambda: enter(LEARNER).shards.set(addresses),
    ]
    for change in changes:
        with pytest.raises(PermissionDeniedError, match="lacks the right admin on all tables"):
            change()
    assert [shard.state for shard in enter(LEARNER).shards.map().shards] == ["active"] * 3  # type: ignore[union-attr]
    assert sorted(shards_of(table)) == [0, 1, 2]


def test_a_token_of_one_table_sees_only_that(enter: Enter) -> None:
    operator, learner = enter(EVERYTHING), enter(LEARNER)
    for name in ("mine", "other"):
        make(operator, name).insert(rows(np.arange(30)))
    assert [table.name for table in learner.tables()] == ["mine"]
    assert sorted(learner.stats().tables) == ["mine"]
    assert sorted(operator.stats().tables) == ["mine", "other"]
    for name in ("other", "missing"):  # it does not learn which of them exists
        with pytest.raises(PermissionDeniedError, match=f"'learner' lacks the right .* on table '{name}'"):
            learner.table(name)
    with pytest.raises(PermissionDeniedError, match="lacks the right admin on table 'mine'"):
        learner.table("mine").drop()
    assert len(operator.table("mine")) == 30


def test_a_wrong_token_is_refused_by_name_of_the_server(
    enter: Enter, servers: list[ServerProcess], authority: Authority, tmp_path: Path
) -> None:
    address = servers[0].address
    make(enter(EVERYTHING)).insert(rows(np.arange(30)))
    calls: list[Callable[[ReplayClient], object]] = [make, ReplayClient.stats, lambda client: client.table("mine")]
    for call in calls:
        with pytest.raises(
            UnauthenticatedError, match=r"replay server at 127\.0\.0\.1:\d+ refused .* token .* unknown"
        ):
            call(enter(WRONG))
    done = run("stats", "-s", address, REPLAY_TOKEN=WRONG, **tls_variables(authority.tls()))
    assert done.returncode == 1
    assert address in done.stderr
    servers[2].kill()  # and returns with other tokens than the others
    (tmp_path / "others.toml").write_text(token_entry("other", "another-token-than-those", ["read"]), "utf-8")
    servers[2].flags = (*servers[2].flags, "--tokens", str(tmp_path / "others.toml"))
    servers[2].restart()
    for call in calls:
        with pytest.raises(UnauthenticatedError, match=f"replay server at {servers[2].address} refused"):
            call(enter(EVERYTHING))


def test_a_wrong_authority_and_plain_text_are_refused_by_name_of_the_server(
    enter: Enter, servers: list[ServerProcess], tmp_path: Path
) -> None:
    anyone = "|".join(server.address for server in servers)
    reasons = {
        Authority(tmp_path / "other").tls(): "certificate that REPLAY_TLS_CA does not trust",
        None: "requires TLS",
    }
    calls: list[Callable[[ReplayClient], object]] = [make, ReplayClient.stats]
    for tls, reason in reasons.items():
        for call in calls:
            with pytest.raises(ServerUnavailableError, match=rf"at ({anyone}) .*{reason}"):
                call(enter(EVERYTHING, tls=tls, wait_for_server_s=0.1))
    assert enter(EVERYTHING).stats().tables == {}


def test_a_server_with_another_certificate_than_the_others_is_named(
    enter: Enter, servers: list[ServerProcess], tmp_path: Path
) -> None:
    make(enter(EVERYTHING))
    servers[1].kill()
    servers[1].flags = (*servers[1].flags, *tls_flags(Authority(tmp_path / "other").certify("server")))
    servers[1].restart()
    named = f"shard 1 at {servers[1].address}.*REPLAY_TLS_CA does not trust"
    with pytest.raises(ServerUnavailableError, match=named):
        make(enter(EVERYTHING, timeout_s=2, wait_for_server_s=1.0), "new")
