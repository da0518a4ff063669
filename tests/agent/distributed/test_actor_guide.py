"""What the trainer publishes for its actors, and what it reads from them, on a real server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import torch
from replay_agent.acting.actor import FinishedEpisode
from replay_agent.distributed import actor_guide
from replay_agent.distributed.actor_guide import ActorGuide, Guidance
from replay_agent.distributed.run_tables import (
    CALL_S,
    EPISODES_CAPACITY,
    ActorTask,
    Progress,
    RunTables,
    episode_row,
    hello,
)
from replay_agent.dqn.networks import NetworkSpec, build_network
from replay_client import DeadlineExceededError, ReplayClient, ServerUnavailableError, Table, TableNotFoundError

from tests.agent.short_runs import PATIENCE_S
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

SPEC = NetworkSpec((2,), "float32", actions=2, hidden_sizes=(4,), dueling=False)
TASK = ActorTask(
    start=7, env_id="Some-v0", table="run", n_step=3, gamma=0.99, network=SPEC, seed=1, starts=0, check_steps=25
)
LEAD = 100
NAMES = RunTables.of("run")


class Guided:
    """A guide, and what the training loop tells it."""

    def __init__(self, client: ReplayClient, task: ActorTask = TASK, reconnect_timeout_s: float = PATIENCE_S) -> None:
        self.client = client
        self.guidance = Guidance(table=1, goal=LEAD, epsilon=1.0)
        self.guide = ActorGuide(
            client,
            "run",
            task,
            lambda: self.guidance,
            lead_steps=LEAD,
            reconnect_timeout_s=reconnect_timeout_s,
        )

    def progress(self, known: int | None = None) -> tuple[int, Progress]:
        """The newest progress, after the version that is known."""
        found = self.client.latest(NAMES.progress, wait_newer=known, timeout_s=PATIENCE_S)
        return found.version, Progress.from_state(found.values)

    def report(self, *rows: dict[str, object]) -> None:
        """Insert rows as actors do."""
        table: Table = self.client[NAMES.episodes]
        table.insert({name: [row[name] for row in rows] for name in rows[0]})

    def taken(self, count: int) -> list[FinishedEpisode]:
        """Take so many episodes, as soon as they are there."""
        found: list[FinishedEpisode] = []

        def is_enough() -> bool:
            found.extend(self.guide.take_episodes(count - len(found)))
            return len(found) == count

        wait_until(is_enough, "the episodes are read", PATIENCE_S)
        return found

    def wait_for_actors(self, count: int) -> None:
        """Wait until so many have joined."""
        wait_until(lambda: self.guide.actors_joined == count, "actors have joined", PATIENCE_S)


@pytest.fixture
def start(server: ServerProcess) -> Iterator[Callable[..., Guided]]:
    """Starts guides, one after the other."""
    with ExitStack() as stack:

        def make(task: ActorTask = TASK) -> Guided:
            client = stack.enter_context(ReplayClient(server.address, timeout_s=CALL_S))
            guided = Guided(client, task)
            stack.callback(guided.guide.drop)
            stack.callback(guided.guide.end, is_over=True)
            return guided

        yield make


def test_the_task_is_there_when_the_progress_is(start: Callable[..., Guided]) -> None:
    guided = start()
    assert ActorTask.from_state(guided.client.latest(NAMES.task, timeout_s=0).values) == TASK
    assert guided.progress()[1] == Progress(TASK.start, 1, LEAD, 1.0, 0, is_finished=False)


def test_a_goal_that_moves_little_waits_for_the_heartbeat(
    start: Callable[..., Guided], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_guide, "HEARTBEAT_S", 3600.0)
    guided = start()
    version, _ = guided.progress()
    guided.guidance = guided.guidance._replace(goal=LEAD + LEAD // 4 - 1, epsilon=0.99)
    with pytest.raises(TimeoutError):
        guided.client.latest(NAMES.progress, wait_newer=version, timeout_s=0.5)
    guided.guidance = guided.guidance._replace(goal=LEAD + LEAD // 4)
    version, progress = guided.progress(version)
    assert (progress.goal, progress.epsilon) == (LEAD + LEAD // 4, 0.99)
    for change in ({"epsilon": 0.9}, {"table": 2}, {"goal": 0}):
        guided.guidance = guided.guidance._replace(**change)
        version, progress = guided.progress(version)
        assert progress[1:4] == guided.guidance


def test_actors_get_a_sign_of_life_while_nothing_changes(
    start: Callable[..., Guided], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_guide, "HEARTBEAT_S", 0.1)
    guided = start()
    version, first = guided.progress()
    for _ in range(3):
        version, progress = guided.progress(version)
        assert progress == first


def test_weights_are_published_once_somebody_wants_them_and_the_newest_ones(start: Callable[..., Guided]) -> None:
    guided = start()
    networks = [build_network(SPEC) for _ in range(3)]
    guided.guide.publish(networks[0].state_dict())
    guided.guide.publish(networks[1].state_dict())
    version, progress = guided.progress()
    assert progress.weights == 0
    with pytest.raises(TableNotFoundError):
        guided.client.latest(NAMES.weights, timeout_s=0)
    guided.report(hello(1, "a"))
    version, progress = guided.progress(version)
    found = guided.client.latest(NAMES.weights, timeout_s=0)
    assert progress.weights == found.version
    guided.guide.publish(networks[2].state_dict())
    progress = guided.progress(version)[1]
    newest = guided.client.latest(NAMES.weights, timeout_s=0)
    assert progress.weights == newest.version > found.version
    for network, published in zip(networks[1:], (found, newest), strict=True):
        for name, tensor in network.state_dict().items():
            assert torch.equal(torch.from_numpy(published.values[name]), tensor)


def test_weights_are_those_at_the_time_of_publishing(start: Callable[..., Guided]) -> None:
    guided = start()
    weights = {"bias": torch.ones(2)}
    guided.guide.publish(weights)
    weights["bias"].fill_(2.0)
    guided.report(hello(1, "a"))
    found = guided.client.latest(NAMES.weights, timeout_s=PATIENCE_S)
    assert found.values["bias"].tolist() == [1.0, 1.0]


def test_episodes_of_several_actors_arrive_once_and_in_order(start: Callable[..., Guided]) -> None:
    guided = start()
    guided.report(hello(111, "a"), episode_row(111, FinishedEpisode(1.0, 10)))
    guided.wait_for_actors(1)
    guided.report(hello(222, "b"))
    guided.wait_for_actors(2)
    episodes = [FinishedEpisode(float(number), number + 1) for number in range(2_500)]
    guided.report(*(episode_row((111, 222)[episode.length % 2], episode) for episode in episodes))
    assert [episode.episode_return for episode in guided.taken(1)] == [1.0]
    found = guided.taken(2_500)
    assert [(episode.episode_return, episode.length) for episode in found] == [
        (episode.episode_return, episode.length) for episode in episodes
    ]
    assert guided.guide.take_episodes(10) == []
    assert guided.guide.missed == 0


def test_impossible_episodes_are_counted_and_left_out(start: Callable[..., Guided]) -> None:
    guided = start()
    rows = [episode_row(1, FinishedEpisode(value, 1)) for value in (1.0, float("nan"), 1e300, float("inf"), 2.0)]
    guided.report(hello(1, "a"), *rows)
    assert [episode.episode_return for episode in guided.taken(2)] == [1.0, 2.0]
    wait_until(lambda: guided.guide.missed == 3, "the others are counted", PATIENCE_S)


def test_episodes_that_nobody_takes_wait_and_the_oldest_are_missed_in_the_end(
    start: Callable[..., Guided], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_guide, "MAX_WAITING", 1)
    guided = start()
    guided.report(episode_row(1, FinishedEpisode(-1.0, 1)))
    table = guided.client[NAMES.episodes]
    wait_until(lambda: len(guided.guide._episodes) == 1, "the first one is read", PATIENCE_S)
    numbers = range(EPISODES_CAPACITY + 50)
    for begin in range(0, len(numbers), 1_000):
        guided.report(*(episode_row(1, FinishedEpisode(float(i), 1)) for i in numbers[begin : begin + 1_000]))
    first = table.describe().inserted - table.size()
    monkeypatch.setattr(actor_guide, "MAX_WAITING", 10**9)
    found = guided.taken(1 + table.describe().inserted - first)
    assert [episode.episode_return for episode in found] == [-1.0, *map(float, numbers[first - 1 :])]
    assert first > 1
    wait_until(lambda: guided.guide.missed == first - 1, "those that are missing are counted", PATIENCE_S)


def test_names_of_actors_forge_no_line_of_the_log_and_do_not_fill_it(
    start: Callable[..., Guided], caplog: pytest.LogCaptureFixture
) -> None:
    guided = start()
    with caplog.at_level(logging.INFO, logger="replay_agent"):
        guided.report(hello(1, "host\n2026-01-01 ERROR forged \x1b[31m\u202eder"))
        guided.wait_for_actors(1)
        guided.report(*(hello(number, f"w-{number}") for number in range(2, 502)))
        guided.wait_for_actors(501)
        guided.report(hello(9, "w-9"))  # it has joined already
        guided.report(episode_row(9, FinishedEpisode(0.0, 1)))
        assert len(guided.taken(1)) == 1
    lines = [record.getMessage() for record in caplog.records if "joined" in record.getMessage()]
    assert lines == [
        r"actor 1 joined: 'host\n2026-01-01 ERROR forged \x1b[31m\u202eder'",
        f"actors 2 to 501 joined: {', '.join(repr(f'w-{number}') for number in range(2, 12))} and 490 others",
    ]


def test_a_finished_run_says_so_and_leaves_nothing_behind(start: Callable[..., Guided]) -> None:
    guided = start()
    guided.report(hello(1, "a"))
    guided.guide.publish(build_network(SPEC).state_dict())
    guided.wait_for_actors(1)
    guided.guide.end(is_over=True)
    assert guided.progress()[1].is_finished
    assert set(NAMES) <= set(guided.client)
    guided.guide.drop()
    assert not set(NAMES) & set(guided.client)


def test_a_run_may_go_on_with_another_network(start: Callable[..., Guided]) -> None:
    first = start()
    first.report(hello(1, "a"))
    first.guide.publish(build_network(SPEC).state_dict())
    first.client.latest(NAMES.weights, timeout_s=PATIENCE_S)
    first.guide.end(is_over=False)
    assert not first.progress()[1].is_finished
    larger = NetworkSpec((2,), "float32", actions=2, hidden_sizes=(8,), dueling=True)
    second = start(ActorTask(8, "Other-v0", "run", 1, 0.9, larger, 1, 1))
    assert ActorTask.from_state(second.client.latest(NAMES.task, timeout_s=0).values).network == larger
    assert second.progress()[1].start == 8
    assert not second.progress()[1].is_finished
    second.report(hello(2, "a"))
    second.guide.publish(build_network(larger).state_dict())
    assert (
        second.client.latest(NAMES.weights, timeout_s=PATIENCE_S).values.keys()
        == build_network(larger).state_dict().keys()
    )
    assert second.guide.actors_joined == 1  # rows of the first start are not read again


def test_a_server_that_returns_has_the_tables_again_and_one_that_does_not_ends_the_run(
    start_server: Callable[..., ServerProcess], tmp_path_factory: pytest.TempPathFactory
) -> None:
    server = start_server("--memory-dir", str(tmp_path_factory.mktemp("memory")))
    with ReplayClient(server.address, timeout_s=0.5) as client:
        guided = Guided(client, reconnect_timeout_s=5.0)
        guided.report(hello(1, "a"))
        guided.guide.publish(build_network(SPEC).state_dict())
        client.latest(NAMES.weights, timeout_s=PATIENCE_S)
        server.kill()
        server.restart()  # with empty memory

        def is_back() -> bool:
            try:
                client.latest(NAMES.weights, timeout_s=0)
                task = ActorTask.from_state(client.latest(NAMES.task, timeout_s=0).values)
                progress = Progress.from_state(client.latest(NAMES.progress, timeout_s=0).values)
            except (ServerUnavailableError, TableNotFoundError, DeadlineExceededError):
                return False
            return task == TASK and progress.start == TASK.start

        wait_until(is_back, "everything is published again", PATIENCE_S)
        assert guided.guide.take_episodes(1) == []
        server.kill()

        def has_failed() -> bool:
            try:
                guided.guide.take_episodes(1)
            except ServerUnavailableError:
                return True
            return False

        wait_until(has_failed, "the loop is told", PATIENCE_S)
        guided.guide.end(is_over=False)


def test_episodes_of_all_servers_are_read(start_server: Callable[..., ServerProcess]) -> None:
    address = ",".join(start_server().address for _ in range(2))
    with ReplayClient(address, timeout_s=CALL_S) as client:
        guided = Guided(client)
        for number in range(20):
            guided.report(episode_row(1, FinishedEpisode(float(number), 1)))
        assert sorted(episode.episode_return for episode in guided.taken(20)) == list(map(float, range(20)))
        assert guided.progress()[1].start == TASK.start
        guided.guide.end(is_over=True)
        guided.guide.drop()
        assert list(client) == []
