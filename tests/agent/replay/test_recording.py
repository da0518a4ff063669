"""The learner gets the n-step transitions of the steps that actors have taken, and rows are each step once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from replay_agent.acting.actor import Actor, Step
from replay_agent.acting.environments import EnvironmentInfo, inspect_environment
from replay_agent.algorithms import step_columns, transition_batch
from replay_agent.dqn.networks import NetworkSpec, build_network
from replay_agent.replay.rows import make_recorders
from replay_agent.replay.run_table import check_table
from replay_agent.settings.train_settings import TrainSettings
from replay_client import Column, InvalidArgumentError, Mask, ReplayClient, Sequences, Table, Transitions
from replay_client.torch import to_torch

from tests.agent.corridor import CORRIDOR_ID, PICTURED_ID, STACKED_ID
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.filterwarnings("ignore:.*share an object:UserWarning")

STEPS, GAMMA = 200, 0.9
COLUMNS = ("obs", "action", "reward", "discount", "next_obs")


def steps_of(env: EnvironmentInfo, environments: int = 1) -> list[list[Step]]:
    """Steps of random play by environment, with episodes that terminate and episodes that are truncated."""
    network = build_network(NetworkSpec(env.observation_shape, env.observation_dtype, 2, (4,), dueling=False))
    actor = Actor(env.env_id, 1, network, environments=environments)
    taken = [actor.step(1.0) for _ in range(STEPS)]
    actor.close()
    by_environment = [list(steps) for steps in zip(*taken, strict=True)]
    for steps in by_environment:
        assert {step.terminated for step in steps if step.is_last} == {True, False}
    return by_environment


@pytest.mark.parametrize("environments", [1, 3])
@pytest.mark.parametrize("n_step", [1, 3])
def test_rows_have_the_priorities_that_the_actors_network_gives_them(
    client: ReplayClient, n_step: int, environments: int
) -> None:
    env = inspect_environment(STACKED_ID)
    item = Transitions(n_step=n_step, gamma=GAMMA)
    table = client.create_table("given", columns=step_columns(env), capacity=1_500, alpha=1.0, epsilon=1e-9, steps=item)
    network = build_network(NetworkSpec(env.observation_shape, env.observation_dtype, 2, (4,), dueling=False))
    actor = Actor(env.env_id, 1, network, environments=environments, estimates=True)
    with table.writer(streams=environments) as writer:
        recorders = make_recorders(writer, n_step, GAMMA)
        for epsilon in [1.0] * STEPS + [0.0] * 40:
            for recorder, step in zip(recorders, actor.step(epsilon), strict=True):
                recorder.record(step)
    actor.close()
    batch = table.sample(3_000, beta=0.0)
    learned = transition_batch(to_torch(batch))
    with torch.no_grad():
        values = network(learned.obs)[torch.arange(len(learned.action)), learned.action]
        td_errors = learned.reward + learned.discount * network(learned.next_obs).max(dim=1).values - values
    assert 0 < (learned.discount == 0).sum() < len(learned.discount)
    np.testing.assert_allclose(batch.probabilities * batch.total_mass, td_errors.abs().numpy(), atol=1e-6)


def drawn(table: Table) -> set[tuple[bytes, ...]]:
    """Everything that the learner gets for the rows of a table."""
    batch = table.sample(5_000)
    assert batch.drawable < 5_000 / 7
    learned = transition_batch(to_torch(batch))
    rows = zip(*(getattr(learned, name).numpy() for name in COLUMNS), strict=True)
    found = {int(key): tuple(value.tobytes() for value in row) for key, row in zip(batch.row_keys, rows, strict=True)}
    assert len(found) == batch.drawable
    return set(found.values())


def transitions_of(steps: list[Step], n_step: int) -> set[tuple[bytes, ...]]:
    """The same for all complete n-step transitions of an environment, from what it has returned."""
    found = set()
    for first, step in enumerate(steps):
        total, discount = 0.0, 1.0
        for after in steps[first : first + n_step]:
            total += discount * after.reward
            discount *= GAMMA
            last = after
            if after.is_last:
                break
        else:
            if first + n_step >= len(steps):
                continue  # it waits for the observation of the next step
        if last.terminated:
            discount = 0.0
        numbers = np.int64(step.action), np.float32(total), np.float32(discount)
        found.add((step.obs.tobytes(), *(each.tobytes() for each in numbers), last.next_obs.tobytes()))
    return found


@pytest.mark.parametrize(
    ("env_id", "environments"), [(CORRIDOR_ID, 1), (PICTURED_ID, 1), (STACKED_ID, 1), (STACKED_ID, 3)]
)
@pytest.mark.parametrize("n_step", [1, 3])
def test_the_learner_gets_the_transitions_of_the_environments(
    client: ReplayClient, env_id: str, n_step: int, environments: int
) -> None:
    env = inspect_environment(env_id)
    by_environment = steps_of(env, environments)
    item = Transitions(n_step=n_step, gamma=GAMMA)
    table = client.create_table("steps", columns=step_columns(env), capacity=1_000, backend="uniform", steps=item)
    with table.writer(streams=environments) as writer:
        for recorder, steps in zip(make_recorders(writer, n_step, GAMMA), by_environment, strict=True):
            for step in steps:
                recorder.record(step)
    expected = set().union(*(transitions_of(steps, n_step) for steps in by_environment))
    assert drawn(table) == expected
    every = [step for steps in by_environment for step in steps]
    assert table.describe().inserted == len(every) + sum(step.is_last for step in every)
    frame = np.zeros(env.frame_shape, env.observation_dtype).nbytes
    assert table.describe().row_bytes == frame + 8 + 4


def test_settings_with_which_no_step_could_be_drawn_are_refused() -> None:
    env = inspect_environment(STACKED_ID)
    given = {"n_step": 5, "learning_starts": 5, "actors": 2, "act": True}
    # 5 steps ahead, 1 drawn, 2 before it for the stack, and 1 that closes an episode, for each of 3 actors
    check_table(TrainSettings(**given, capacity=27), env)
    with pytest.raises(ValueError, match=r"expected capacity of at least 27 with n_step 5, .*got capacity 26"):
        check_table(TrainSettings(**given, capacity=26), env)
    check_table(TrainSettings(**given, envs_per_actor=2, capacity=54), env)
    with pytest.raises(ValueError, match=r"at least 54 .* 6 environments; got capacity 53"):
        check_table(TrainSettings(**given, envs_per_actor=2, capacity=53), env)


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
    settings = TrainSettings(n_step=5_000, learning_starts=10_000)
    with pytest.raises(InvalidArgumentError, match="n_step"):
        check_table(settings, env)
