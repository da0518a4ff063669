"""The learner's service with tokens and TLS, and actors that use them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from replay_agent.acting.seeds import RunSeeds
from replay_agent.commands import replay_train
from replay_agent.distributed.assignment import make_task
from replay_agent.distributed.learner_access import LearnerAccess
from replay_agent.distributed.learner_client import LearnerClient, LearnerRefusesError, LearnerUnavailableError
from replay_agent.distributed.learner_server import LearnerServer
from replay_agent.distributed.learner_service import Guidance, LearnerService, PublishedWeights
from replay_agent.dqn.networks import NetworkSpec
from replay_agent.settings.train_settings import load_train_settings
from replay_client import Tls

from tests.agent.short_runs import SHORT_RUN, Trained, flags_of
from tests.support.access import (
    ALL,
    EXPIRED,
    MINE,
    OTHER,
    READ,
    WRITE,
    WRONG,
    Authority,
    tls_flags,
    tls_variables,
    write_usual_tokens,
)
from tests.support.server_process import ServerProcess

SPEC = NetworkSpec((2,), "float32", actions=2, hidden_sizes=(4,), dueling=False)
Serve = Callable[[LearnerAccess], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts learners and returns their addresses."""
    started: list[LearnerServer] = []

    def start(access: LearnerAccess) -> str:
        task = make_task("Some-v0", f"{MINE}run", n_step=1, gamma=0.9, network=SPEC)
        weights = PublishedWeights({"weight": torch.zeros(1)})
        service = LearnerService(task, RunSeeds(0), weights, lambda: Guidance(granted_steps=1, epsilon=0.5))
        started.append(LearnerServer(service, "127.0.0.1", 0, access))
        return started[-1].address

    yield start
    for server in started:
        server.close()


def joins(address: str, token: str | None = None, tls: Tls | None = None, timeout_s: float = 10.0) -> bool:
    with LearnerClient(address, timeout_s, token, tls) as client:
        return client.join("test").actor_id > 0


def test_an_actor_needs_the_right_to_write_to_the_runs_table(serve: Serve, tmp_path: Path) -> None:
    address = serve(LearnerAccess(tokens=write_usual_tokens(tmp_path / "tokens.toml")))
    for token in (WRITE, ALL):
        assert joins(address, token)
    refused: tuple[str | None, ...] = (None, WRONG, EXPIRED, READ, OTHER)
    for other in refused:
        with pytest.raises(LearnerRefusesError, match="check REPLAY_TOKEN") as refusal:
            joins(address, other)
        assert other is None or other not in str(refusal.value)


def test_a_learner_with_tls_takes_those_who_trust_it_and_are_trusted(serve: Serve, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    served, mine = authority.certify("learner"), authority.certify("actor", "actor")
    address = serve(LearnerAccess(served.cert, served.key, authority.ca))
    assert joins(address, tls=authority.tls(mine))
    for tls in (None, authority.tls(), Tls()):
        with pytest.raises(LearnerUnavailableError, match="REPLAY_LEARNER_TLS"):
            joins(address, tls=tls, timeout_s=1.0)


def test_a_learner_is_not_reached_from_elsewhere_unprotected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert replay_train.main(["--learner-host", "0.0.0.0", "--runs-dir", str(tmp_path)]) == replay_train.EXIT_FAILED
    for part in ("--learner-host 0.0.0.0", "--learner-tls-cert", "--learner-tokens", "--learner-insecure"):
        assert part in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_learner_with_tls_alone_is_not_reached_from_elsewhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = Authority(tmp_path / "authority").certify("learner")
    flags = ["--learner-tls-cert", str(served.cert), "--learner-tls-key", str(served.key)]
    runs = tmp_path / "runs"
    assert replay_train.main(["--learner-host", "0.0.0.0", "--runs-dir", str(runs), *flags]) == replay_train.EXIT_FAILED
    for part in ("TLS alone encrypts", "--learner-tokens", "--learner-tls-client-ca", "--learner-insecure"):
        assert part in caplog.text
    assert not runs.exists()


def test_half_a_certificate_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (["--learner-tls-cert", "c"], ["--learner-tls-key", "k"], ["--learner-tls-client-ca", "ca"]):
        with pytest.raises(SystemExit):
            load_train_settings(flags)
        assert "learner_tls_cert and learner_tls_key" in capsys.readouterr().err


def test_a_run_with_tokens_and_tls_everywhere_comes_to_its_end(
    start_server: Callable[..., ServerProcess], trained: Callable[..., Trained], tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "authority")
    tokens = write_usual_tokens(tmp_path / "tokens.toml")
    served, mine = authority.certify("server"), authority.certify("client", "client")
    server = start_server(*tls_flags(served, authority.ca), "--tokens", str(tokens))
    tls = authority.tls(mine)
    done = trained(
        {"REPLAY_TOKEN": ALL, **tls_variables(tls), **tls_variables(tls, "REPLAY_LEARNER_TLS")},
        server=server.address,
        table=f"{MINE}run",
        learner_tls_cert=served.cert,
        learner_tls_key=served.key,
        learner_tls_client_ca=authority.ca,
        learner_tokens=tokens,
    )
    assert done.status == 0, done.output
    assert json.loads((tmp_path / "run" / "result.json").read_text())["env_steps"] >= SHORT_RUN["steps"]
    written = [
        path.read_text(errors="replace") for path in (tmp_path / "run").rglob("*") if path.suffix in (".json", ".log")
    ]
    assert written
    assert not [text for text in (*written, done.output, server.log()) if ALL in text]


def test_a_server_of_the_trainers_own_does_without_the_variables_of_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in {"REPLAY_TLS_CA": "/absent", "REPLAY_LEARNER_TLS_CA": "/absent", "REPLAY_TOKEN": ALL}.items():
        monkeypatch.setenv(name, value)
    values = {**SHORT_RUN, "runs_dir": tmp_path, "name": "run", "actors": 1}
    assert replay_train.main(flags_of(values)) == 0, caplog.text
