"""Only callers with admin rights on all tables of a checkpoint can remove it, directly or through retention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from replay_client import Column, PermissionDeniedError, ReplayClient

from tests.support.access import token_entry
from tests.support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]
CLIENTS = {
    "root": (["admin"], ["*"]),
    "mine": (["admin"], ["mine*"]),
    "theirs": (["admin"], ["theirs*"]),
    "both": (["admin"], ["mine*", "theirs*"]),
    "p": (["admin"], ["p*"]),
    "writer": (["write"], ["*"]),
}
"""Rights and tables of each token."""
COLUMNS = {"x": Column("int64")}


class Clients:
    """A client of each kind."""

    def __init__(self, server: ServerProcess, stack: ExitStack) -> None:
        self.server = server
        self._of = {
            name: stack.enter_context(ReplayClient(server.address, token=token_of(name), same_host=False))
            for name in CLIENTS
        }

    def __getitem__(self, name: str) -> ReplayClient:
        return self._of[name]

    def names(self) -> list[str]:
        """Names of all checkpoints."""
        return [checkpoint.name for checkpoint in self["root"].checkpoints()]


def token_of(name: str) -> str:
    return f"{name}-{'x' * 20}"


@pytest.fixture
def start_clients(start_server: StartServer, tmp_path: Path) -> Iterator[Callable[..., Clients]]:
    with ExitStack() as stack:

        def start(*flags: str) -> Clients:
            tokens = tmp_path / "tokens.toml"
            tokens.write_text("".join(token_entry(name, token_of(name), *given) for name, given in CLIENTS.items()))
            folder = str(tmp_path / "checkpoints")
            return Clients(start_server("--tokens", str(tokens), "--checkpoint-dir", folder, *flags), stack)

        yield start


@pytest.fixture
def clients(start_clients: Callable[..., Clients]) -> Clients:
    """Clients of a server with the tables ``mine`` and ``theirs``."""
    clients = start_clients()
    for name in ("mine", "theirs"):
        clients[name].create_table(name, columns=COLUMNS, capacity=10)
    return clients


def test_nobody_removes_checkpoints_of_others(clients: Clients) -> None:
    for series in ("periodic", "nightly", "mine-all"):
        clients["root"].checkpoint(series=series)
    clients["theirs"].checkpoint(["theirs"])
    clients["both"].checkpoint(["theirs", "mine"], series="mine-both")
    before = clients.names()
    for series in ("periodic", "nightly", "mine-all", "theirs", "mine-both", "checkpoint"):
        with pytest.raises(PermissionDeniedError) as refusal:
            clients["mine"].checkpoint(["mine"], series=series, keep=1)
        assert "theirs" not in str(refusal.value).replace(f"series '{series}'", "")
    assert clients.names() == before


def test_the_series_of_ones_own_tables_is_ones_own(clients: Clients) -> None:
    for _ in range(3):
        clients["mine"].checkpoint(["mine"], keep=2)
        clients["both"].checkpoint(["theirs", "mine"], keep=1)
    assert sorted(clients.names()) == ["mine-000002", "mine-000003", "theirs-000003"]
    clients["root"].checkpoint(["mine"], series="mine", keep=1)
    assert sorted(clients.names()) == ["mine-000004", "theirs-000003"]
    assert clients["root"].checkpoint(["mine"]).name == "checkpoint-000001"


def test_a_series_with_a_damaged_checkpoint_is_its_servers(clients: Clients) -> None:
    made = clients["mine"].checkpoint(["mine"])
    (Path(made.directory) / "_checkpoint.json").write_bytes(b"{}")
    with pytest.raises(PermissionDeniedError):
        clients["mine"].checkpoint(["mine"], keep=1)
    clients["root"].checkpoint(["mine"], series="mine", keep=1)
    assert clients.names() == ["mine-000002"]


def test_the_servers_own_series_is_not_to_be_had_beforehand(clients: Clients) -> None:
    clients["p"].create_table("periodic", columns=COLUMNS, capacity=10)
    for series in ("periodic", None):
        with pytest.raises(PermissionDeniedError, match="series 'periodic'"):
            clients["p"].checkpoint(["periodic"], series=series)
    clients["p"].checkpoint(["periodic"], series="periodically")


def test_all_tables_take_the_right_to_all_where_there_are_none_too(start_clients: Callable[..., Clients]) -> None:
    clients = start_clients()
    clients["root"].checkpoint(series="periodic")
    assert clients.names() == ["periodic-000001"]
    calls: list[Callable[[ReplayClient], object]] = [
        lambda client: client.checkpoint(),
        lambda client: client.checkpoint(series="periodic", keep=1),
        lambda client: client.checkpoints(),
        lambda client: client.verify_checkpoint("periodic-000001"),
    ]
    for name in ("writer", "mine"):
        for call in calls:
            with pytest.raises(PermissionDeniedError, match="the right admin on all tables"):
                call(clients[name])


def test_a_refusal_to_copy_all_names_no_table(clients: Clients) -> None:
    with pytest.raises(PermissionDeniedError) as refusal:
        clients["mine"].checkpoint()
    assert "theirs" not in str(refusal.value)
    assert refusal.value.metadata == {"right": "admin", "table": ""}
