"""Other users of the machine can reach the loopback ports of a run's own server and learner, but are refused."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from replay_agent.acting.seeds import RunSeeds
from replay_agent.distributed.assignment import make_task
from replay_agent.distributed.learner_access import LearnerAccess
from replay_agent.distributed.learner_client import LearnerClient, LearnerRefusesError
from replay_agent.distributed.learner_server import LearnerServer
from replay_agent.distributed.learner_service import Guidance, LearnerService, PublishedWeights
from replay_agent.dqn.networks import NetworkSpec, build_network
from replay_agent.processes.actor_pool import ActorsFailError
from replay_agent.processes.own_access import OwnAccess, own_access
from replay_agent.settings.train_settings import TrainSettings
from replay_agent.training import own_actors
from replay_agent.training.own_actors import actor_environment, check_learner, learner_access
from replay_client import ReplayClient, UnauthenticatedError

from experiments.common.server_access import replay_server
from tests.agent.processes.test_processes import lines_of
from tests.agent.short_runs import PATIENCE_S, SHORT_RUN, Trained, flags_of
from tests.support.access import Authority, tls_variables
from tests.support.deadlines import wait_until

SPEC = NetworkSpec((2,), "float32", actions=2, hidden_sizes=(4,), dueling=False)
STRANGE = "f" * 64


@pytest.fixture
def own(tmp_path: Path) -> Iterator[OwnAccess]:
    with own_access(tmp_path / "access") as made:
        yield made


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_the_token_is_for_the_eyes_of_its_owner_and_gone_in_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "access"
    folder.mkdir(mode=0o777)
    (folder / "token").write_text("left by a start that was killed")
    with own_access(folder) as first:
        assert permissions(folder) == 0o700
        assert [permissions(path) for path in (first.token_file, first.tokens_file)] == [0o600, 0o600]
        assert first.token_file.read_text().strip() == first.token
        assert first.token not in first.tokens_file.read_text()
        assert first.token not in repr(first)
    assert list(folder.iterdir()) == []
    with own_access(folder) as second:
        assert second.token != first.token


def test_a_folder_that_leads_elsewhere_gets_no_token(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "access").symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(PermissionError, match="expected a directory of the user who runs this"),
        own_access(tmp_path / "access"),
    ):
        pass
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_an_experiments_own_server_serves_nobody_else(tmp_path: Path) -> None:
    with replay_server(None, tmp_path) as server:
        with server.connect() as client:
            assert client.tables() == []
        for token in (None, STRANGE):
            with ReplayClient(server.address, token=token) as stranger, pytest.raises(UnauthenticatedError):
                stranger.tables()


def processes_of(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


@pytest.mark.slow
def test_server_and_learner_of_a_run_serve_nobody_but_its_owner(tmp_path: Path) -> None:
    values = {**SHORT_RUN, "steps": 10_000_000, "runs_dir": tmp_path, "name": "run", "actors": 1}
    run = tmp_path / "run"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REPLAY_")}
    with ExitStack() as ends:
        process = ends.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "replay_agent.commands.replay_train", *flags_of(values)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
        )
        ends.callback(process.kill)  # if a check fails, so that nothing waits for its end
        lines, said = lines_of(process), ""
        deadline = time.monotonic() + PATIENCE_S
        while "to inspect the replay server: " not in said and time.monotonic() < deadline:
            said += lines.get(timeout=PATIENCE_S)
        found = re.search(r"replay server at (\S+), learner at (\S+),", said)
        command = re.search(r"to inspect the replay server: (.*)", said)
        assert found, said
        assert command, said
        token = (run / "access" / "token").read_text().strip()
        wait_until(lambda: (run / "logs" / "actor-0.log").exists(), "an actor is started", PATIENCE_S)
        wait_until(lambda: "actor 1 of run" in (run / "logs" / "actor-0.log").read_text(), "it joined", PATIENCE_S)

        for strange in (None, STRANGE):
            with ReplayClient(found[1], token=strange) as client, pytest.raises(UnauthenticatedError):
                client.drop_table("run")
            with LearnerClient(found[2], PATIENCE_S, strange) as learner, pytest.raises(LearnerRefusesError):
                learner.join("stranger")
        with LearnerClient(found[2], PATIENCE_S, token) as learner:
            assert learner.join("another actor of this user").actor_id > 1
        # The command that the log shows to the user.
        shown = subprocess.run(
            command[1].replace("replay stats", f"{Path(sys.executable).parent}/replay stats"),
            shell=True,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert shown.returncode == 0, shown.stderr
        assert "run" in shown.stdout
        assert not [each for each in processes_of(process.pid) if token in " ".join(each.cmdline())]
        process.terminate()
        process.wait(PATIENCE_S)
        while line := lines.get(timeout=PATIENCE_S):
            said += line
    assert token not in said
    assert not [path for path in run.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]


def settings_of(**given: object) -> TrainSettings:
    return TrainSettings(**{**SHORT_RUN, **given})


@pytest.mark.parametrize(
    ("given", "is_own"),
    [
        ({}, True),
        ({"server": "host:1", "actors": 2}, True),
        ({"server": "host:1"}, False),
        ({"learner_insecure": True}, False),
        ({"learner_host": "0.0.0.0"}, False),
        ({"learner_tokens": Path("given")}, False),
        ({"learner_tls_cert": Path("c"), "learner_tls_key": Path("k")}, True),
        ({"learner_tls_cert": Path("c"), "learner_tls_key": Path("k"), "learner_tls_client_ca": Path("a")}, False),
    ],
)
def test_the_learner_wants_the_runs_token_where_the_user_expects_nobody_else(
    own: OwnAccess, given: dict[str, object], is_own: bool
) -> None:
    settings = settings_of(**given)
    assert (learner_access(settings, own).tokens == own.tokens_file) == is_own
    variables = actor_environment(settings, own, {})
    assert (variables.get("REPLAY_LEARNER_TOKEN") == own.token) == is_own
    assert (variables.get("REPLAY_TOKEN") == own.token) == (settings.server is None)


def test_actors_of_our_own_show_each_service_the_token_that_it_wants(own: OwnAccess) -> None:
    mine = {"REPLAY_TOKEN": "mine", "OTHER": "kept"}
    settings = settings_of(learner_tokens=Path("given"))
    assert actor_environment(settings, own, mine) == {
        "REPLAY_TOKEN": own.token,
        "REPLAY_LEARNER_TOKEN": "mine",
        "OTHER": "kept",
    }
    settings = settings_of(server="host:1", actors=1)
    assert actor_environment(settings, own, mine) == {**mine, "REPLAY_LEARNER_TOKEN": own.token}


def test_actors_of_our_own_trust_the_learners_certificate(trained: Callable[..., Trained], tmp_path: Path) -> None:
    served = Authority(tmp_path / "authority").certify("learner")
    done = trained({}, learner_tls_cert=served.cert, learner_tls_key=served.key)
    assert done.status == 0, done.output


def test_a_certificate_that_actors_of_our_own_cannot_trust_is_said_at_the_start(
    own: OwnAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_actors, "CONNECT_TIMEOUT_S", 1.0)
    authority, stranger = Authority(tmp_path / "authority"), Authority(tmp_path / "stranger")
    served, elsewhere = authority.certify("learner"), authority.certify("elsewhere", "elsewhere")
    mine = authority.certify("actor", "actor")
    cases: list[tuple[LearnerAccess, dict[str, str], bool]] = [
        (LearnerAccess(served.cert, served.key), {}, True),
        (LearnerAccess(served.cert, served.key), {"REPLAY_LEARNER_TLS_CA": str(stranger.ca)}, False),
        (LearnerAccess(elsewhere.cert, elsewhere.key), {}, False),
        (LearnerAccess(elsewhere.cert, elsewhere.key), {"REPLAY_LEARNER_TLS_SERVER_NAME": "elsewhere"}, True),
        (LearnerAccess(served.cert, served.key, authority.ca), {}, False),
        (
            LearnerAccess(served.cert, served.key, authority.ca),
            dict(tls_variables(authority.tls(mine), "REPLAY_LEARNER_TLS")),
            True,
        ),
    ]
    weights = PublishedWeights(build_network(SPEC).state_dict())
    service = LearnerService(make_task("Some-v0", "t", 1, 0.9, SPEC), RunSeeds(0), weights, lambda: Guidance(1, 0.5))
    for access, variables, is_reached in cases:
        settings = settings_of(
            actors=1,
            learner_tls_cert=access.tls_cert,
            learner_tls_key=access.tls_key,
            learner_tls_client_ca=access.tls_client_ca,
        )
        server = LearnerServer(service, "127.0.0.1", 0, access)
        environment = actor_environment(settings, own, variables)
        if is_reached:
            check_learner(server.address, environment)
        else:
            with pytest.raises(ActorsFailError, match="REPLAY_LEARNER_TLS_CA to name the authority"):
                check_learner(server.address, environment)
        server.close()
