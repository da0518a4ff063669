"""Compact tables: batches are those of tables with n-step transitions, and rows are each step once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from replay_agent.acting.actor import Actor, Step
from replay_agent.acting.environments import EnvironmentInfo, inspect_environment
from replay_agent.acting.seeds import ActorSeeds
from replay_agent.dqn.networks import NetworkSpec, build_network
from replay_agent.replay.rows import make_recorder, step_columns, transition_batch, transition_columns
from replay_agent.replay.run_table import check_table, is_compact
from replay_agent.settings.train_settings import TrainSettings
from replay_client import Column, InvalidArgumentError, Mask, ReplayClient, Sequences, Table, Transitions
from replay_client.torch import to_torch

from tests.agent.corridor import CORRIDOR_ID, PICTURED_ID, STACKED_ID
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.filterwarnings("ignore:.*share an object:UserWarning")

STEPS, GAMMA = 200, 0.9
COLUMNS = ("obs", "action", "reward", "discount", "next_obs")


def steps_of(env: EnvironmentInfo) -> list[Step]:
    """Steps of random play, with episodes that terminate and episodes that are truncated."""
    network = build_network(NetworkSpec(env.observation_shape, env.observation_dtype, 2, (4,), dueling=False))
    actor = Actor(env.env_id, ActorSeeds(1), network)
    steps = [actor.step(1.0).step for _ in range(STEPS)]
    actor.close()
    assert {step.terminated for step in steps if step.is_last} == {True, False}
    return steps


@pytest.mark.parametrize("kind", ["compact", "transitions"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_rows_have_the_priorities_that_the_actors_network_gives_them(
    client: ReplayClient, kind: str, n_step: int
) -> None:
    env = inspect_environment(STACKED_ID)
    item = Transitions(n_step=n_step, gamma=GAMMA) if kind == "compact" else None
    columns = step_columns(env) if item else transition_columns(env)
    table = client.create_table(kind, columns=columns, capacity=500, alpha=1.0, epsilon=1e-9, steps=item)
    network = build_network(NetworkSpec(env.observation_shape, env.observation_dtype, 2, (4,), dueling=False))
    actor = Actor(env.env_id, ActorSeeds(1), network, estimates=True)
    with table.writer() as writer:
        recorder = make_recorder(writer, n_step, GAMMA)
        for epsilon in [1.0] * STEPS + [0.0] * 40:
            recorder.record(actor.step(epsilon).step)
    actor.close()
    batch = table.sample(3_000, beta=0.0)
    learned = transition_batch(to_torch(batch))
    with torch.no_grad():
        values = network(learned.obs)[torch.arange(len(learned.action)), learned.action]
        td_errors = learned.reward + learned.discount * network(learned.next_obs).max(dim=1).values - values
    assert 0 < (learned.discount == 0).sum() < len(learned.discount)
    np.testing.assert_allclose(batch.probabilities * batch.total_mass, td_errors.abs().numpy(), atol=1e-6)


def by_key(table: Table) -> dict[int, tuple[bytes, ...]]:
    """Everything that the learner gets for the rows of a table, by key."""
    batch = table.sample(3_000)
    assert batch.drawable < 3_000 / 10
    learned = transition_batch(to_torch(batch))
    rows = zip(*(getattr(learned, name).numpy() for name in COLUMNS), strict=True)
    found = {int(key): tuple(value.tobytes() for value in row) for key, row in zip(batch.row_keys, rows, strict=True)}
    assert len(found) == batch.drawable
    return dict(sorted(found.items()))


@pytest.mark.parametrize("env_id", [CORRIDOR_ID, PICTURED_ID, STACKED_ID])
@pytest.mark.parametrize("n_step", [1, 3])
def test_the_learner_gets_the_same_from_both_kinds_of_tables(client: ReplayClient, env_id: str, n_step: int) -> None:
    env = inspect_environment(env_id)
    steps = steps_of(env)
    item = Transitions(n_step=n_step, gamma=GAMMA)
    compact = client.create_table("compact", columns=step_columns(env), capacity=500, backend="uniform", steps=item)
    plain = client.create_table("transitions", columns=transition_columns(env), capacity=500, backend="uniform")
    for table in (compact, plain):
        with table.writer() as writer:
            recorder = make_recorder(writer, n_step, GAMMA)
            for step in steps:
                recorder.record(step)
    expected = list(by_key(plain).values())
    # The last transition waits for the step after it, which has the observation that it ends with.
    pending = int(not steps[-1].is_last)
    assert list(by_key(compact).values()) == expected[: len(expected) - pending]
    assert compact.describe().inserted == STEPS + sum(step.is_last for step in steps)
    if env.stack > 1:
        assert compact.describe().row_bytes < plain.describe().row_bytes / 4


def test_compact_is_for_images_and_sequences_unless_set() -> None:
    vector, image = inspect_environment(CORRIDOR_ID), inspect_environment(PICTURED_ID)
    assert [is_compact(TrainSettings(), env) for env in (vector, image)] == [False, True]
    for value in (False, True):
        assert [is_compact(TrainSettings(compact=value), env) for env in (vector, image)] == [value, value]
    assert is_compact(TrainSettings(algorithm="r2d2"), vector)


def test_settings_with_which_no_step_could_be_drawn_are_refused() -> None:
    env = inspect_environment(STACKED_ID)
    given = {"compact": True, "n_step": 5, "learning_starts": 5, "actors": 2, "act": True}
    # 5 steps ahead, 1 drawn, 2 before it for the stack, and 1 that closes an episode, for each of 3 actors
    check_table(TrainSettings(**given, capacity=27), env)
    with pytest.raises(ValueError, match=r"expected capacity of at least 27 with compact, .*got capacity 26"):
        check_table(TrainSettings(**given, capacity=26), env)
    check_table(TrainSettings(**{**given, "compact": False}, capacity=26), env)


def test_a_table_that_could_never_have_a_whole_sequence_is_refused() -> None:
    env = inspect_environment(STACKED_ID)
    given = {"algorithm": "r2d2", "burn_in": 4, "sequence_length": 6, "n_step": 3, "learning_starts": 10}
    # 2 before the sequence for its stacks, 4 of burn-in, 9 of the sequence, which begins every 6 steps, and 1 after it
    check_table(TrainSettings(**given, capacity=22), env)
    with pytest.raises(ValueError, match=r"at least 22 .*burn_in 4, sequence_length 6, .*got capacity 21"):
        check_table(TrainSettings(**given, capacity=21), env)
    check_table(TrainSettings(**given, sequence_period=1, capacity=17), env)


@pytest.mark.parametrize("spare", [0, -1])
def test_a_full_table_of_the_smallest_capacity_always_has_a_sequence_to_draw(server: ServerProcess, spare: int) -> None:
    item = Sequences(length=4, burn_in=2, period=3)
    capacity = item.length + 1 + item.burn_in + item.period + spare
    drawable = []
    with ReplayClient(server.address) as client:
        table = client.create_table(
            "smallest", columns={"x": Column("int64"), "mask": Mask()}, capacity=capacity, backend="uniform", steps=item
        )
        with table.writer() as writer:
            for length in (*range(1, 16), 40):
                for step in range(length + 1):
                    writer.append(x=step) if step < length else writer.end_episode(x=step)
                    writer.flush()
                    stats = table.stats()
                    assert stats.steps is not None
                    if stats.size == capacity:
                        drawable.append(stats.steps.drawable)
        table.drop()
    assert (min(drawable) > 0) == (spare == 0)


def test_windows_longer_than_a_table_allows_are_refused_with_the_name_of_the_setting() -> None:
    env = inspect_environment(CORRIDOR_ID)
    settings = TrainSettings(compact=True, n_step=5_000, learning_starts=10_000)
    with pytest.raises(InvalidArgumentError, match="n_step"):
        check_table(settings, env)
