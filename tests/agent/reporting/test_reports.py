"""Which reports of actors a learner accepts, with real calls to a real service."""

from __future__ import annotations

import ast
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import grpc
import pytest
import replay_agent
from replay_agent.acting.actor import FinishedEpisode
from replay_agent.acting.seeds import RunSeeds
from replay_agent.distributed.actors import (
    LINES_PER_S,
    MAX_EPISODES,
    MAX_LENGTH,
    MAX_NAME_LENGTH,
    MAX_QUEUED,
    JoinLog,
    Reports,
)
from replay_agent.distributed.assignment import make_task
from replay_agent.distributed.learner_client import LearnerClient, LearnerRefusesError
from replay_agent.distributed.learner_server import LearnerServer
from replay_agent.distributed.learner_service import Guidance, LearnerService, PublishedWeights
from replay_agent.dqn.divergence import MAX_RETURN, DivergedError
from replay_agent.dqn.networks import NetworkSpec, build_network
from replay_agent.reporting.progress import ProgressView
from replay_agent.training.trainer import Ending, Trainer
from replay_proto.v1 import learner_pb2

import experiments
from tests.agent.corridor import BROKEN_ID
from tests.agent.short_runs import Watcher
from tests.support.refusals import code_of

SPEC = NetworkSpec((2,), "float32", actions=2, hidden_sizes=(4,), dueling=False)
TASK = make_task("Some-v0", "table-1", n_step=1, gamma=0.9, network=SPEC)


@pytest.fixture
def service() -> LearnerService:
    weights = PublishedWeights(build_network(SPEC).state_dict())
    return LearnerService(TASK, RunSeeds(0), weights, lambda: Guidance(granted_steps=1, epsilon=0.5))


@pytest.fixture
def address(service: LearnerService) -> Iterator[str]:
    server = LearnerServer(service, "127.0.0.1", 0)
    yield server.address
    server.close()


@pytest.fixture
def client(address: str) -> Iterator[LearnerClient]:
    with LearnerClient(address, timeout_s=20.0) as made:
        yield made


def request(episodes: Sequence[tuple[float, int]], actor_id: int = 1) -> learner_pb2.ReportRequest:
    return learner_pb2.ReportRequest(
        actor_id=actor_id,
        episodes=[learner_pb2.FinishedEpisode(episode_return=value, length=length) for value, length in episodes],
    )


@pytest.mark.parametrize(
    ("episode_return", "length", "expected"),
    [
        (math.inf, 1, r"episodes\[1\]\.episode_return: expected a finite number .* got inf"),
        (-math.inf, 1, r"episodes\[1\]\.episode_return: .* got -inf"),
        (math.nan, 1, r"episodes\[1\]\.episode_return: .* got nan"),
        (1e300, 1, r"episodes\[1\]\.episode_return: .* from -1e\+30 to 1e\+30, got 1e\+300"),
        (1.0, 0, r"episodes\[1\]\.length: expected 1 to .* got 0"),
        (1.0, -(2**63), r"episodes\[1\]\.length: .* got -9223372036854775808"),
        (1.0, MAX_LENGTH + 1, r"episodes\[1\]\.length: .* got 9007199254740993"),
    ],
)
def test_an_episode_that_cannot_be_is_refused_and_nothing_of_its_report_is_kept(
    service: LearnerService, client: LearnerClient, episode_return: float, length: int, expected: str
) -> None:
    assignment = client.join("a")
    with pytest.raises(LearnerRefusesError, match=expected):
        client.report(assignment, [FinishedEpisode(1.0, 1), FinishedEpisode(episode_return, length)])
    assert service.reports.take_episodes() == []
    client.report(assignment, [FinishedEpisode(-MAX_RETURN, 1), FinishedEpisode(MAX_RETURN, MAX_LENGTH)])
    assert len(service.reports.take_episodes()) == 2


def test_a_report_of_too_many_episodes_is_refused(service: LearnerService, address: str, client: LearnerClient) -> None:
    assignment = client.join("a")
    whole = request([(1.0, 1)] * (MAX_EPISODES + 1))
    whole.run_id = assignment.run_id
    with grpc.insecure_channel(address) as channel:
        report: Callable[..., bytes] = channel.unary_unary("/replay.v1.LearnerService/Report")
        with pytest.raises(grpc.RpcError, match="expected at most 1000, got 1001") as error:
            report(whole.SerializeToString(), timeout=20.0)
    assert code_of(error.value) is grpc.StatusCode.INVALID_ARGUMENT
    assert service.reports.take_episodes() == []


def test_an_actor_with_more_episodes_than_a_report_may_have_reports_them_all(
    service: LearnerService, client: LearnerClient
) -> None:
    assignment = client.join("a")
    episodes = [FinishedEpisode(float(number), 1, assignment.actor_id) for number in range(2 * MAX_EPISODES + 1)]
    for count in (0, 1, MAX_EPISODES, MAX_EPISODES + 1, 2 * MAX_EPISODES, 2 * MAX_EPISODES + 1):
        assert client.report(assignment, episodes[:count]).granted_steps == 1
        assert service.reports.take_episodes() == episodes[:count]


@pytest.mark.parametrize("actor_id", [-1, 0, 2])
def test_a_report_of_an_actor_that_never_joined_is_refused(client: LearnerClient, actor_id: int) -> None:
    joined = client.join("a")
    joined.actor_id = actor_id
    with pytest.raises(LearnerRefusesError, match=f"actor_id: expected the number that Join gave, got {actor_id}"):
        client.report(joined, [])


def test_episodes_that_the_trainer_has_no_time_for_give_way_to_newer_ones() -> None:
    reports = Reports()
    count = MAX_QUEUED // MAX_EPISODES + 2
    for number in range(count):
        reports.add(request([(float(number), 1)] * MAX_EPISODES), actors_joined=1)
    assert reports.dropped == 2 * MAX_EPISODES
    kept = reports.take_episodes()
    assert len(kept) == MAX_QUEUED
    assert (kept[0].episode_return, kept[-1].episode_return) == (2.0, float(count - 1))


def test_the_trainer_may_take_some_of_the_episodes_and_is_told_of_the_rest() -> None:
    reports = Reports()
    reports.add(request([(float(number), 1) for number in range(5)]), actors_joined=1)
    reports.arrived.clear()
    assert [episode.episode_return for episode in reports.take_episodes(3)] == [0.0, 1.0, 2.0]
    assert reports.arrived.is_set()
    reports.arrived.clear()
    assert [episode.episode_return for episode in reports.take_episodes(3)] == [3.0, 4.0]
    assert not reports.arrived.is_set()


def test_the_name_of_an_actor_forges_no_line_of_the_log(
    client: LearnerClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="replay_agent"):
        client.join("host\n2026-01-01 ERROR forged \x1b[31m\u202eder")
    (line,) = [record.getMessage() for record in caplog.records if "joined" in record.getMessage()]
    assert line == r"actor 1 joined: 'host\n2026-01-01 ERROR forged \x1b[31m\u202eder'"


def test_actors_that_join_without_end_write_a_bounded_number_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    joins = JoinLog(lambda: now_s)
    with caplog.at_level(logging.INFO, logger="replay_agent"):
        for number in range(1, 10_001):
            joins.note(number, f"{number}".ljust(10_000))
        assert len(caplog.records) == LINES_PER_S
        now_s = 1.0
        joins.note(10_001, "late")
    assert caplog.records[-1].getMessage() == f"actor 10001 joined: 'late', after {10_000 - LINES_PER_S} others"
    assert max(len(record.getMessage()) for record in caplog.records) < MAX_NAME_LENGTH + 50


def test_an_actor_that_makes_episodes_up_neither_holds_the_run_up_nor_fills_its_learning_curve(
    make_trainer: Callable[..., Trainer],
) -> None:
    trainer = make_trainer()

    def flood() -> None:
        for _ in range(MAX_QUEUED // MAX_EPISODES + 1):
            trainer.service.reports.add(request([(1e30, 1)] * MAX_EPISODES), actors_joined=1)

    assert trainer.train(Watcher(200, flood), None) is Ending.STEPS_DONE
    history = trainer.history.to_json()
    assert trainer.service.reports.dropped == MAX_EPISODES
    assert 200 < len(history["episode_steps"]) <= trainer.pacer.env_steps
    trainer.save()


def test_an_environment_whose_rewards_are_not_finite_ends_the_run(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(env=BROKEN_ID)
    with pytest.raises(DivergedError, match=r"expected a return from -1e\+30 to 1e\+30 of a training episode, got nan"):
        trainer.train(ProgressView(), None)
    assert trainer.history.to_json()["episode_returns"] == []


def test_greedy_episodes_of_such_an_environment_are_noticed_too(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(env=BROKEN_ID)
    with pytest.raises(DivergedError, match="of a greedy episode, got nan"):
        trainer.evaluate_best()


def test_whatever_writes_json_refuses_what_is_no_json() -> None:
    writers = [
        (path.name, call)
        for package in (replay_agent, experiments)
        for path in Path(package.__path__[0]).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("json.dumps", "json.dump")
    ]
    assert len(writers) >= 4
    for name, call in writers:
        assert "allow_nan=False" in map(ast.unparse, call.keywords), f"{name}:{call.lineno}"
