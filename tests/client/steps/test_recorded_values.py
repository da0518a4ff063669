"""Recorded Gymnasium environments: transformed observations, and final values of other columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation
from replay_client import Column, InvalidArgumentError, Next, Rows, Table, Transitions
from replay_client.gymnasium import RecordSteps

from tests.client.steps.numbered_env import NumberedEnv
from tests.client.steps.test_recorded_envs import ENVS, FLAT, numbered, really_made, run, stored

NewTable = Callable[..., Table]


class Informed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Tells the number of each observation in its info."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        obs, _ = self.env.reset(**options)
        return obs, {"number": int(obs[0])}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = self.env.step(action)
        return obs, reward, terminated, truncated, {"number": int(obs[0])}


def informed(number: int) -> Informed:
    return Informed(NumberedEnv(number, reuses_arrays=False))


def stacked(number: int) -> FrameStackObservation[Any, Any, Any]:
    return FrameStackObservation(NumberedEnv(number, reuses_arrays=False), 3)


@pytest.fixture
def table(new_table: NewTable) -> Table:
    """An empty table of steps with a column for values."""
    return new_table(columns={**FLAT, "value": Column("float32"), "next_value": Next("value")}, steps=Transitions())


def rows_of(table: Table) -> Rows:
    return table.read(np.arange(table.describe().inserted))


def assert_finals_are_numbers(table: Table) -> None:
    """Check that the value of each closing row is the number of its observation, and 0 in all other rows."""
    rows = rows_of(table)
    assert rows.ends is not None
    assert np.count_nonzero(rows.ends) > 5
    np.testing.assert_array_equal(rows["value"], np.where(rows.ends > 0, rows["obs"][:, 0], 0))


@pytest.mark.parametrize("mode", AutoresetMode)
def test_the_newest_of_stacked_frames_is_stored(new_table: NewTable, mode: AutoresetMode) -> None:
    table = new_table(columns=FLAT, steps=Transitions(), capacity=1000)
    envs = SyncVectorEnv([partial(stacked, number) for number in range(ENVS)], autoreset_mode=mode)
    with table.writer(streams=ENVS) as writer:
        recorded = RecordSteps(envs, writer, transform=lambda obs: obs[:, -1])
        obs, _ = recorded.reset()
        assert obs.shape == (ENVS, 3, 2)
        run(recorded, 40, np.random.default_rng(1))
        assert stored(table, writer) == [really_made(env) for env in envs.envs]


def test_the_newest_frame_of_a_single_environment_is_stored(new_table: NewTable) -> None:
    table, env = new_table(columns=FLAT, steps=Transitions()), stacked(1)
    with table.writer() as writer:
        recorded = RecordSteps(env, writer, transform=lambda obs: obs[-1])
        for _ in range(10):
            obs, _ = recorded.reset()
            assert obs.shape == (3, 2)
            while not any(recorded.step(3)[2:4]):
                pass
        assert stored(table, writer) == [really_made(env)]


def _numbers(infos: dict[str, Any]) -> dict[str, Any]:
    """The value of the last observation, by the infos of all environments."""
    if "final_info" in infos:
        return {"value": np.where(infos["_final_info"], infos["final_info"]["number"], 0)}
    return {"value": infos["number"]}


@pytest.mark.parametrize("mode", AutoresetMode)
def test_final_values_follow_from_the_infos(table: Table, mode: AutoresetMode) -> None:
    envs = SyncVectorEnv([partial(informed, number) for number in range(ENVS)], autoreset_mode=mode)
    with table.writer(streams=ENVS) as writer:
        recorded = RecordSteps(envs, writer, final=_numbers)
        recorded.reset()
        for _ in range(30):
            recorded.with_next_step(value=np.zeros(ENVS))
            run(recorded, 1, np.random.default_rng(1))
    assert_finals_are_numbers(table)


def test_final_values_of_a_single_environment_follow_from_its_info(table: Table) -> None:
    with table.writer() as writer:
        recorded = RecordSteps(informed(1), writer, final=lambda info: {"value": info["number"]})
        for episode in range(12):
            recorded.reset()
            is_over = False
            while not is_over:
                recorded.with_next_step(value=0.0)
                is_over = any(recorded.step(3)[2:4]) or episode == 4  # whose end is a reset
        recorded.reset()
    assert_finals_are_numbers(table)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_final_values_may_be_the_same_each_time(table: Table, mode: AutoresetMode) -> None:
    with table.writer(streams=ENVS) as writer:
        recorded = RecordSteps(numbered(mode), writer, final={"value": np.array([7.0, 8.0, 9.0]), "action": [1, 1, 1]})
        recorded.reset()
        for _ in range(30):
            recorded.with_next_step(value=np.zeros(ENVS))
            run(recorded, 1, np.random.default_rng(1))
    rows = rows_of(table)
    assert rows.ends is not None
    stream = rows["obs"][:, 0] // 1000
    np.testing.assert_array_equal(rows["value"], np.where(rows.ends > 0, 7 + stream, 0))
    assert (rows["action"][rows.ends > 0] == 1).all()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_transform_that_fails_loses_the_current_episodes_and_no_others(
    new_table: NewTable, mode: AutoresetMode
) -> None:
    table = new_table(columns=FLAT, steps=Transitions(), capacity=1000)
    envs, rng, fails = numbered(mode), np.random.default_rng(3), False

    def transform(obs: Any) -> Any:
        if fails:
            raise ZeroDivisionError
        return obs

    with table.writer(streams=ENVS) as writer:
        recorded = RecordSteps(envs, writer, transform=transform)
        recorded.reset()
        for _ in range(6):
            run(recorded, 5, rng)
            fails = True
            with pytest.raises(ZeroDivisionError):
                run(recorded, 1, rng)
            fails = False
            if mode is AutoresetMode.DISABLED:
                recorded.reset()
        run(recorded, 5, rng)
        found = stored(table, writer)
    for episodes, env in zip(found, envs.envs, strict=True):
        made = {each.first: each for each in really_made(env)}
        for episode in episodes:
            whole = made[episode.first]
            assert episode.steps == whole.steps[: len(episode.steps)]
            assert episode.final in (None, whole.final)
        assert len(episodes) >= len(made) - 2 * 6  # the one that fails, and one whose beginning is not known


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transform": 3}, "transform: expected a function of an observation, or None, got 3"),
        ({"final": 3}, "final: expected a mapping without 'obs', a function that returns one, or None, got 3"),
        ({"final": {"obs": 3}}, "final: expected a mapping without 'obs'"),
    ],
)
def test_what_cannot_be_used_is_refused(table: Table, options: dict[str, Any], message: str) -> None:
    with table.writer() as writer, pytest.raises(InvalidArgumentError, match=message):
        RecordSteps(NumberedEnv(1), writer, **options)


def assert_priorities_are_numbers(table: Table, steps_ago: int) -> None:
    """Check that a step has its observation as priority, unless its episode ended before that was known.

    The last steps of an episode have the largest priority of those that became drawable with its end, or that of new
    rows.
    """
    rows = rows_of(table)
    assert rows.ends is not None
    assert rows.steps is not None
    known = 0
    for place in np.flatnonzero((rows.ends == 0) & ~np.isnan(rows.priorities)).tolist():
        stream, episode, step = rows.streams[place], rows.episodes[place], rows.steps[place]
        mine = (rows.streams == stream) & (rows.episodes == episode) & (rows.ends == 0)
        if step + steps_ago <= rows.steps[mine].max():
            assert rows.priorities[place] == rows["obs"][place, 0]
            known += 1
    assert known > 5


@pytest.mark.parametrize("steps_ago", [0, 1])
def test_priorities_of_a_single_environment_are_recorded(new_table: NewTable, steps_ago: int) -> None:
    table, env = new_table(columns=FLAT, steps=Transitions(n_step=2)), informed(1)
    with table.writer() as writer:
        recorded = RecordSteps(env, writer)
        for _ in range(20):
            obs, _ = recorded.reset()
            before: list[float] = []
            is_over = False
            while not is_over:
                before.append(float(obs[0]))
                if len(before) > steps_ago:
                    recorded.with_next_step(priority=before[-1 - steps_ago], steps_ago=steps_ago)
                obs, _, terminated, truncated, _ = recorded.step(3)
                is_over = terminated or truncated
    assert_priorities_are_numbers(table, steps_ago)


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("steps_ago", [0, 1])
def test_priorities_of_vector_environments_are_recorded(
    new_table: NewTable, mode: AutoresetMode, steps_ago: int
) -> None:
    table = new_table(columns=FLAT, steps=Transitions(n_step=2), capacity=1000)
    envs = SyncVectorEnv([partial(informed, number) for number in range(ENVS)], autoreset_mode=mode)
    with table.writer(streams=ENVS) as writer:
        recorded = RecordSteps(envs, writer)
        obs, _ = recorded.reset()
        before = np.full(ENVS, np.nan)  # the observations of the last steps, in episodes that go on
        for _ in range(40):
            newest = obs[:, 0].astype(float)
            recorded.with_next_step(priorities=before if steps_ago else newest, steps_ago=steps_ago)
            obs, _, terminated, truncated, _ = recorded.step(np.full(ENVS, 3))
            is_over = terminated | truncated
            before = np.where(is_over, np.nan, newest)
            if mode is AutoresetMode.NEXT_STEP:
                resets = ~np.isnan(before) & np.isin(obs[:, 0], [each.made[-1].first for each in really(envs)])
                before[resets] = np.nan
            if mode is AutoresetMode.DISABLED and is_over.any():
                obs, _ = recorded.reset(options={"reset_mask": is_over})
    assert_priorities_are_numbers(table, steps_ago)


def really(envs: SyncVectorEnv) -> list[NumberedEnv]:
    return [env.unwrapped for env in envs.envs]  # type: ignore[misc]
