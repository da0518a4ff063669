"""Certificates and tokens that are renewed while a client runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from replay_client import (
    Column,
    DeadlineExceededError,
    InvalidArgumentError,
    ReplayClient,
    ServerUnavailableError,
    Tls,
    UnauthenticatedError,
    aio,
)
from replay_client.security import token_from_environment
from replay_proto.access.certificates import expiry_of

from tests.support.access import ALL, WRONG, Authority, tls_flags, write_usual_tokens
from tests.support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]
COLUMNS = {"x": Column("int64")}


class Renewal:
    """A server that asks clients for certificates, and a client's certificate that is renewed between two starts."""

    def __init__(self, start_server: StartServer, folder: Path) -> None:
        self._folder = folder
        self._authority = Authority(folder / "servers")
        self._trusted = folder / "clients.pem"
        self._trust("first")
        flags = [
            *tls_flags(self._authority.certify("server"), self._trusted),
            "--data-dir",
            str(folder / "data"),
            "--drain-s",
            "0",
        ]
        self.server = start_server(*flags)
        self.tls = Tls(ca=self._authority.ca, cert=folder / "me.pem", key=folder / "me.key")

    def renew(self) -> None:
        """Restart the server, which from now on accepts only the new certificate."""
        self.server.terminate()
        self._trust("second")
        self.server.restart()

    def _trust(self, name: str) -> None:
        authority = Authority(self._folder / name)
        self._trusted.write_bytes(authority.ca.read_bytes())
        certified = authority.certify("me", "me")
        os.replace(certified.cert, self._folder / "me.pem")
        os.replace(certified.key, self._folder / "me.key")


@pytest.fixture
def renewal(start_server: StartServer, tmp_path: Path) -> Renewal:
    """A server and a certificate."""
    return Renewal(start_server, tmp_path)


def test_a_renewed_certificate_reaches_calls_and_streams_of_a_running_client(renewal: Renewal) -> None:
    with ReplayClient(renewal.server.address, tls=renewal.tls, same_host=False) as client:
        table = client.create_table("t", columns=COLUMNS, capacity=100)
        with table.writer() as writer, table.sampler(2, beta=0.4) as sampler:
            writer.append(x=1)
            writer.flush()
            next(sampler)
            renewal.renew()
            assert table.stats().size == 1
            writer.append(x=2)
            writer.flush()
            assert len(next(sampler)["x"]) == 2
        assert table.stats().size == 2


def test_a_renewed_certificate_reaches_a_running_client_for_asyncio(renewal: Renewal) -> None:
    async def run() -> None:
        async with aio.ReplayClient(renewal.server.address, tls=renewal.tls, same_host=False) as client:
            table = await client.create_table("t", columns=COLUMNS, capacity=100)
            async with table.writer() as writer:
                await writer.append(x=1)
                await writer.flush()
                await asyncio.to_thread(renewal.renew)
                assert (await table.stats()).size == 1
                await writer.append(x=2)
                await writer.flush()
            assert (await table.stats()).size == 2

    asyncio.run(run())


def test_a_certificate_that_is_half_written_leaves_the_one_before(renewal: Renewal) -> None:
    assert renewal.tls.cert is not None
    with ReplayClient(renewal.server.address, tls=renewal.tls) as client:
        assert client.tables() == []
        Path(renewal.tls.cert).write_text("half")
        assert client.tables() == []
    with pytest.raises(InvalidArgumentError, match=r"tls\.cert, tls\.key: expected a certificate and its key"):
        ReplayClient(renewal.server.address, tls=renewal.tls)


def test_an_error_names_when_the_certificate_of_the_client_expired(start_server: StartServer, tmp_path: Path) -> None:
    authority, ended = Authority(tmp_path), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    server = start_server(*tls_flags(authority.certify("server"), authority.ca))
    expired = authority.certify("me", "me", until=ended)
    assert expiry_of(expired.cert) == ended
    with ReplayClient(server.address, tls=authority.tls(expired), wait_for_server_s=1.0) as client:
        with pytest.raises((ServerUnavailableError, DeadlineExceededError)) as error:
            client.tables()
        assert f"the certificate of this client, {expired.cert}, expired at 2026-01-02 03:04:05 UTC" in str(error.value)
        authority.certify("me", "me", until=datetime.now(UTC) + timedelta(days=1))
        assert client.tables() == []


def test_expiry_is_read_from_times_of_both_kinds_and_nonsense_has_none(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for year in (2031, 2061):  # DER has two digits for a year before 2050, and four later
        until = datetime(year, 6, 7, 8, 9, 10, tzinfo=UTC)
        assert expiry_of(authority.certify("one", until=until).cert) == until
    (tmp_path / "nonsense").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for path in (tmp_path / "nonsense", tmp_path / "absent", tmp_path):
        assert expiry_of(path) is None


@pytest.fixture
def guarded(start_server: StartServer, tmp_path: Path) -> ServerProcess:
    """A server that requires tokens."""
    return start_server("--tokens", str(write_usual_tokens(tmp_path / "tokens.toml")))


@pytest.mark.parametrize("same_host", [True, False])
def test_a_token_is_read_again_from_its_file(guarded: ServerProcess, tmp_path: Path, same_host: bool) -> None:
    file = tmp_path / "token"
    file.write_text(f"{ALL}\n")
    with ReplayClient(guarded.address, token=file, same_host=same_host) as client:
        table = client.create_table("mine-t", columns=COLUMNS, capacity=10)
        table.insert({"x": np.arange(3)})
        file.write_text(WRONG)
        with pytest.raises(UnauthenticatedError):
            client.tables()
        file.write_text(f"  {ALL}  ")
        assert len(table.sample(2, beta=0.4)["x"]) == 2
        file.write_text("")  # it is being written
        assert len(table.sample(2, beta=0.4)["x"]) == 2


def test_a_function_gives_the_token_of_each_call(guarded: ServerProcess) -> None:
    tokens = [ALL]
    with ReplayClient(guarded.address, token=lambda: tokens[-1]) as client:
        assert client.tables() == []
        tokens.append(WRONG)
        with pytest.raises(UnauthenticatedError):
            client.tables()
        tokens.append("not a token")
        with pytest.raises(InvalidArgumentError, match="token: expected ASCII characters without spaces"):
            client.tables()


def test_a_client_names_a_token_file_that_it_cannot_read(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(InvalidArgumentError, match=f"token: expected a file with a token, got '{path}'"):
            ReplayClient("localhost:1", token=path)


def test_the_token_may_stand_in_a_file_named_by_a_variable() -> None:
    assert token_from_environment(environment={"REPLAY_TOKEN_FILE": "/a/file"}) == Path("/a/file")
    assert token_from_environment(environment={"REPLAY_TOKEN_FILE": "/a/file", "REPLAY_TOKEN": ALL}) == ALL
    assert token_from_environment("REPLAY_LEARNER_TOKEN", {"REPLAY_TOKEN_FILE": "/a/file"}) is None
