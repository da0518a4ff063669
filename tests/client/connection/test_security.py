"""Tokens and TLS in the client: environment variables, and no leaked tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from replay_client import Column, InvalidArgumentError, ReplayClient, Tls, UnauthenticatedError
from replay_client.security import token_from_environment

from tests.client.test_cli import run
from tests.support.access import ALL, WRITE, WRONG, Authority, tls_flags, tls_variables, write_usual_tokens
from tests.support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]


def test_variables_say_how_to_encrypt() -> None:
    assert Tls.from_environment(environment={}) is None
    assert Tls.from_environment(environment={"REPLAY_TLS": "0"}) is None
    assert Tls.from_environment(environment={"REPLAY_TLS": "1"}) == Tls()
    assert Tls.from_environment(environment={"REPLAY_TLS_CA": "ca.pem"}) == Tls(ca="ca.pem")
    variables = {f"REPLAY_TLS_{name}": name.lower() for name in ("CA", "CERT", "KEY", "SERVER_NAME")}
    assert Tls.from_environment(environment=variables) == Tls("ca", "cert", "key", "server_name")
    other = {f"REPLAY_LEARNER_TLS_{name}": "x" for name in ("CA",)}
    assert Tls.from_environment(environment=other) is None
    assert Tls.from_environment("REPLAY_LEARNER_TLS", other) == Tls(ca="x")


@pytest.mark.parametrize("variables", [{"REPLAY_TLS": "perhaps"}, {"REPLAY_TLS_CERT": "alone"}])
def test_variables_that_cannot_be_used_are_named(variables: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"REPLAY_TLS|tls"):
        Tls.from_environment(environment=variables)


def test_a_variable_for_tls_without_effect_is_named(caplog: pytest.LogCaptureFixture) -> None:
    variables = {"REPLAY_TLS_CERTIFICATE": "me.pem", "REPLAY_TLS_CA": "", "REPLAY_TLS_KEYS": ""}
    assert Tls.from_environment(environment=variables) is None
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("the variable REPLAY_TLS_CERTIFICATE has no effect")
    assert told.endswith("did you mean REPLAY_TLS_CERT?")


def test_a_command_names_the_variable_that_cannot_be_used() -> None:
    assert run("tables", REPLAY_SERVER="nonsense").stderr.endswith("got 'nonsense' (from --server or REPLAY_SERVER)\n")
    assert run("tables", REPLAY_TLS_CA="/nowhere").stderr.endswith("(from REPLAY_TLS_CA)\n")
    assert run("tables", REPLAY_TOKEN_FILE="/nowhere").stderr.endswith("(from REPLAY_TOKEN or REPLAY_TOKEN_FILE)\n")


def test_the_token_may_stand_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REPLAY_TOKEN", raising=False)
    assert token_from_environment() is None
    monkeypatch.setenv("REPLAY_TOKEN", f" {ALL}\n")
    assert token_from_environment() == ALL
    monkeypatch.setenv("REPLAY_TOKEN", "")
    assert token_from_environment() is None


@pytest.mark.parametrize("token", ["", "with space", "line\n", "ümlaut", 5])
def test_a_token_that_cannot_be_one_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(InvalidArgumentError, match="token: expected ASCII characters without spaces") as refusal:
        ReplayClient("localhost:1", token=token)
    assert "with space" not in str(refusal.value)


def test_a_token_shows_neither_in_objects_nor_in_errors_nor_in_logs(
    start_server: StartServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = start_server("--tokens", str(write_usual_tokens(tmp_path / "tokens.toml")), "--log-level", "debug")
    with ReplayClient(server.address, token=ALL) as client:
        table = client.create_table("mine-table", columns={"x": Column("int64")}, capacity=10)
        writer = table.writer()
        writer.append(x=1)
        writer.close()
        shown = [repr(each) for each in (client, table, writer, client.stats(), table.describe())]
    with ReplayClient(server.address, token=WRONG) as client, pytest.raises(UnauthenticatedError) as refusal:
        client.tables()
    shown += [str(refusal.value), repr(refusal.value), str(refusal.value.metadata), caplog.text, server.log()]
    assert not [text for text in shown if ALL in text or WRONG in text]


def test_the_command_takes_token_and_tls_from_variables(start_server: StartServer, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    tokens = write_usual_tokens(tmp_path / "tokens.toml")
    served, mine = authority.certify("server"), authority.certify("client", "me")
    server = start_server(*tls_flags(served, authority.ca), "--tokens", str(tokens))
    variables = {"REPLAY_SERVER": server.address, **tls_variables(authority.tls(mine))}
    done = run("tables", "--json", REPLAY_TOKEN=ALL, **variables)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    done = run("tables", **variables)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "REPLAY_TOKEN" in done.stderr
    done = run("tables", REPLAY_TOKEN=WRITE, **variables)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "lacks the right read" in done.stderr
    done = run("tables", REPLAY_TOKEN=ALL, REPLAY_SERVER=server.address)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "REPLAY_TLS" in done.stderr
