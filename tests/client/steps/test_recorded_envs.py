"""Recorded Gymnasium environments: what is stored is what the environments really did."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from replay_client import Column, InvalidArgumentError, Next, ServerUnavailableError, Table, Transitions, Writer
from replay_client.gymnasium import RecordSteps
from replay_proto.v1 import replay_pb2

from tests.client.steps.numbered_env import Made, NumberedEnv

NewTable = Callable[..., Table]

OTHERS = {"action": Column("int64"), "reward": Column("float32")}
FLAT = {"obs": Column("int64", 2), **OTHERS, "next_obs": Next("obs")}
NESTED = {"obs/a": Column("int64", 2), "obs/b": Column("int64"), **OTHERS, "next_b": Next("obs/b")}
ENVS = 3


@pytest.fixture
def steps_table(new_table: NewTable) -> Table:
    """An empty table of steps, for observations that are not nested."""
    return new_table(columns=FLAT, steps=Transitions(1), backend="uniform", capacity=1000)


def makers(mode: AutoresetMode, **options: Any) -> list[partial[NumberedEnv]]:
    """Make numbered environments, which reuse their arrays unless Gymnasium itself cannot cope with that."""
    options["reuses_arrays"] = mode is not AutoresetMode.SAME_STEP
    return [partial(NumberedEnv, number, **options) for number in range(ENVS)]


def numbered(mode: AutoresetMode, **options: Any) -> SyncVectorEnv:
    """Numbered environments, one after another."""
    return SyncVectorEnv(makers(mode, **options), autoreset_mode=mode)


def stored(table: Table, writer: Writer, obs: str = "obs") -> list[list[Made]]:
    """The episodes in a table, of each stream of a writer."""
    writer.flush()
    rows = table.read(np.arange(table.describe().inserted))
    assert rows.steps is not None
    assert rows.ends is not None
    observations = np.asarray(rows[obs]).reshape(len(rows.row_keys), -1)
    assert (observations == observations[:, :1]).all()
    streams: list[list[Made]] = []
    for stream in range(len(writer)):
        episodes: dict[int, Made] = {}
        for place in np.flatnonzero(rows.streams == writer[stream].number).tolist():
            number = int(observations[place, 0])
            made = episodes.setdefault(int(rows.episodes[place]), Made(number))
            assert rows.steps[place] == len(made.steps)
            if rows.ends[place]:
                made.final, made.end = number, int(rows.ends[place])
            else:
                made.steps.append((number, int(rows["action"][place]), float(rows["reward"][place])))
        streams.append([episodes[number] for number in sorted(episodes)])
    return streams


def really_made(env: Any) -> list[Made]:
    """What an environment did, apart from an episode without steps."""
    return [made for made in env.unwrapped.made if made.steps]


def run(envs: Any, steps: int, rng: np.random.Generator, over: np.ndarray[Any, Any] | None = None) -> None:
    """Step environments, and reset those that do not do so themselves."""
    mode = envs.metadata["autoreset_mode"]
    for _ in range(steps):
        _, _, terminated, truncated, _ = envs.step(rng.integers(10, size=envs.num_envs))
        over = terminated | truncated
        if mode is AutoresetMode.DISABLED and over.any():
            envs.reset(options={"reset_mask": over})


@pytest.mark.parametrize("mode", AutoresetMode)
def test_every_step_of_a_vector_environment_is_stored_once(new_table: NewTable, mode: AutoresetMode) -> None:
    table = new_table(columns=NESTED, steps=Transitions(1), backend="uniform", capacity=1000)
    envs = numbered(mode, is_nested=True)
    with table.writer(streams=ENVS) as writer:
        recorded = RecordSteps(envs, writer)
        recorded.reset()
        run(recorded, 40, np.random.default_rng(1))
        found = stored(table, writer, "obs/b")
    assert found == [really_made(env) for env in envs.envs]
    assert {made.end for episodes in found for made in episodes} >= {
        replay_pb2.EPISODE_END_TRUNCATED,
        replay_pb2.EPISODE_END_TERMINATED,
    }


@pytest.mark.parametrize("mode", AutoresetMode)
def test_every_step_of_environments_in_other_processes_is_stored_once(steps_table: Table, mode: AutoresetMode) -> None:
    envs = AsyncVectorEnv(makers(mode), context="spawn", autoreset_mode=mode)
    with closing(envs), steps_table.writer(streams=ENVS) as writer:
        recorded = RecordSteps(envs, writer)
        recorded.reset()
        run(recorded, 40, np.random.default_rng(1))
        expected = [[made for made in episodes if made.steps] for episodes in envs.get_attr("made")]
        assert stored(steps_table, writer) == expected


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_reset_in_the_middle_truncates_running_episodes(steps_table: Table, mode: AutoresetMode) -> None:
    envs = numbered(mode)
    rng = np.random.default_rng(2)
    with steps_table.writer(streams=ENVS) as writer:
        recorded = RecordSteps(envs, writer)
        for steps in (1, 2, 5, 0, 3):
            recorded.reset()
            run(recorded, steps, rng)
        recorded.reset(options={"reset_mask": np.array([True, False, True])})
        run(recorded, 4, rng)
        found = stored(steps_table, writer)
    assert found == [really_made(env) for env in envs.envs]


def test_other_columns_are_given_for_the_next_step(new_table: NewTable) -> None:
    columns = {"obs": Column("int64", 2), "state": Column("float32")}
    table = new_table(columns=columns, steps=Transitions(1), backend="uniform")
    envs = SyncVectorEnv([partial(NumberedEnv, number, is_endless=True) for number in range(2)])
    with table.writer(streams=2) as writer:
        recorded = RecordSteps(envs, writer, action=None, reward=None)
        recorded.reset()
        for step in range(3):
            recorded.with_next_step(state=np.array([step, -step], np.float32))
            recorded.step(np.zeros(2, np.int64))
        writer.flush()
        rows = table.read(np.arange(6))
    for stream, sign in ((0, 1.0), (1, -1.0)):
        assert rows["state"][rows.streams == writer[stream].number].tolist() == [0.0, sign, 2 * sign]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_after_steps_that_could_not_be_sent_the_next_episodes_are_whole_again(
    steps_table: Table, mode: AutoresetMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = numbered(mode)
    rng = np.random.default_rng(3)

    def fail(*_: object, **__: object) -> None:
        raise ServerUnavailableError("gone")

    with steps_table.writer(streams=ENVS) as writer:
        recorded = RecordSteps(envs, writer)
        recorded.reset()
        run(recorded, 10, rng)
        with monkeypatch.context() as patched:
            patched.setattr(writer, "append_all", fail)
            with pytest.raises(ServerUnavailableError):
                run(recorded, 1, rng)
        run(recorded, 20, rng)
        found = stored(steps_table, writer)
    for episodes, env in zip(found, envs.envs, strict=True):
        whole = [made for made in really_made(env) if made.final is not None]
        complete = [made for made in episodes if made.final is not None]
        assert all(made in whole for made in complete)
        assert len(complete) >= len(whole) - 2


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_step_that_raises_midway_joins_no_steps(
    steps_table: Table, mode: AutoresetMode, failure: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environments before the one that raises have made their steps."""
    envs = numbered(mode)
    rng = np.random.default_rng(3)

    def fail(*_: object) -> None:
        raise failure("broken")

    with steps_table.writer(streams=ENVS) as writer:
        recorded = RecordSteps(envs, writer)
        recorded.reset()
        for _ in range(5):
            run(recorded, 6, rng)
            with monkeypatch.context() as patched:
                patched.setattr(envs.envs[1].unwrapped, "step", fail)
                with pytest.raises(failure):
                    run(recorded, 3, rng)  # in some modes, that environment may only reset in the first one
            recorded.reset()
        run(recorded, 20, rng)
        found = stored(steps_table, writer)
    for episodes, env in zip(found, envs.envs, strict=True):
        made = {each.first: each for each in really_made(env)}
        for episode in episodes:
            whole = made[episode.first]
            assert episode.steps == whole.steps[: len(episode.steps)]
            assert episode.final is None or episode == whole
        assert len(episodes) >= len(made) - 5


def test_values_for_a_step_that_raises_are_not_those_of_the_next_one(new_table: NewTable) -> None:
    table = new_table(columns={**FLAT, "state": Column("float32")}, steps=Transitions(1), capacity=100)
    env = NumberedEnv(1, is_endless=True)
    with table.writer() as writer:
        recorded = RecordSteps(env, writer)
        recorded.reset()
        recorded.with_next_step(state=1.0)
        recorded.step(0)
        recorded.with_next_step(state=2.0, priority=1.0, steps_ago=1)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(env, "step", {}.__getitem__)
            with pytest.raises(KeyError):
                recorded.step(0)
        recorded.reset()
        recorded.with_next_step(state=3.0)
        recorded.step(0)
    (rows,) = table.rows()
    assert rows["state"][rows.ends == 0].tolist() == [1.0, 3.0]


def test_writers_that_do_not_fit_are_refused(steps_table: Table, table: Table) -> None:
    envs = SyncVectorEnv([partial(NumberedEnv, number) for number in range(2)])
    with steps_table.writer(streams=3) as writer, table.writer() as plain:
        with pytest.raises(InvalidArgumentError, match="a writer with 2 streams"):
            RecordSteps(envs, writer)
        with pytest.raises(InvalidArgumentError, match="one stream"):
            RecordSteps(NumberedEnv(1), writer)
        with pytest.raises(InvalidArgumentError, match="table with steps"):
            RecordSteps(NumberedEnv(1), plain)
        envs.metadata = {}
        with pytest.raises(InvalidArgumentError, match="autoreset_mode"):
            RecordSteps(envs, steps_table.writer(streams=2))
