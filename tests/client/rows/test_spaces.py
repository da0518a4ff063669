"""Columns from Gymnasium spaces, and round trips of their values."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from replay_client import Column, InvalidArgumentError, Schema, Table, Transitions
from replay_client._rows.checks import flattened
from replay_client.gymnasium import RecordSteps
from replay_client.spaces import columns_from_space, flatten_value, transition_columns, unflatten_value

NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (4, 4, 3), np.uint8),
        "arm": spaces.Tuple((spaces.Discrete(5, start=-2), spaces.MultiDiscrete([3, 4]), spaces.MultiBinary([2, 2]))),
        "deep": spaces.Dict({"position": spaces.Box(-1.0, 1.0, (2,), np.float64)}),
    }
)


HAS_DTYPE = "dtype" in inspect.signature(spaces.Discrete).parameters  # since Gymnasium 1.2


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(-1.0, 1.0, (4,)), "float32[4]"),
        (spaces.Box(0, 255, (84, 84), np.uint8), "uint8[84,84]"),
        (spaces.Box(0.0, 1.0, ()), "float32"),
        (spaces.Discrete(3), "int64"),
        *([(spaces.Discrete(3, dtype=np.int32), "int32")] if HAS_DTYPE else []),
        (spaces.MultiDiscrete([2, 3]), "int64[2]"),
        (spaces.MultiBinary(4), "int8[4]"),
    ],
)
def test_a_plain_space_is_one_column(space: spaces.Space[Any], expected: str) -> None:
    columns = columns_from_space(space, "obs")
    assert {name: str(column) for name, column in columns.items()} == {"obs": expected}


def test_a_nested_space_is_a_column_for_each_part() -> None:
    columns = columns_from_space(NESTED, "obs")
    assert {name: str(column) for name, column in columns.items()} == {
        "obs/arm/0": "int64",
        "obs/arm/1": "int64[2]",
        "obs/arm/2": "int8[2,2]",
        "obs/camera": "uint8[4,4,3]",
        "obs/deep/position": "float64[2]",
    }


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Sequence(spaces.Discrete(2))])
def test_a_space_without_a_fixed_shape_is_refused(space: spaces.Space[Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"obs/part.*{type(space).__name__}"):
        columns_from_space(spaces.Dict({"part": space}), "obs")


def test_a_value_flattens_as_its_space_does() -> None:
    value = NESTED.sample()
    flat = flatten_value("obs", value)
    assert flat.keys() == columns_from_space(NESTED, "obs").keys()
    assert flattened(Schema(columns_from_space(NESTED, "obs")), {"obs": value}).keys() == flat.keys()
    restored = unflatten_value(NESTED, "obs", flat)
    assert NESTED.contains(restored)
    np.testing.assert_array_equal(restored["arm"][2], value["arm"][2])


def test_observations_go_into_a_table_as_they_are(new_table: Callable[..., Table]) -> None:
    action_space = spaces.Discrete(4)
    columns = {
        **columns_from_space(NESTED, "obs"),
        **columns_from_space(action_space, "action"),
        "reward": Column("float32"),
    }
    table = new_table(columns=columns)
    observations = [NESTED.sample() for _ in range(10)]
    with table.writer() as writer:
        for observation in observations:
            writer.append(obs=observation, action=action_space.sample(), reward=1.0)
    read = table.read(np.arange(10))
    for index, observation in enumerate(observations):
        np.testing.assert_array_equal(read["obs/camera"][index], observation["camera"])
        np.testing.assert_array_equal(read["obs/arm/0"][index], observation["arm"][0])
        np.testing.assert_array_equal(read["obs/deep"]["position"][index], observation["deep"]["position"])


class Counting(gymnasium.Env[Any, Any]):
    """Counts its steps in a part of a nested observation. Step t has the reward t, and the fifth ends the episode."""

    observation_space = spaces.Dict({"count": spaces.Box(0.0, 5.0, (2,)), "flag": spaces.Discrete(2)})
    action_space = spaces.Box(-1.0, 1.0, (3,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.count = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._obs(), float(self.count), self.count == 5, False, {}

    def _obs(self) -> dict[str, Any]:
        return {"count": np.full(2, self.count, np.float32), "flag": self.count % 2}


def check_transitions_of_two_steps(table: Table) -> None:
    """The rewards of step t and the next are t + 1 and t + 2. gamma is 0.5, and nothing follows the fifth step."""
    batch = table.sample(256)
    counts = batch["obs/count"][:, 0]
    assert set(counts) == {0.0, 1.0, 2.0, 3.0, 4.0}
    assert batch["action"].shape == (256, 3)
    assert "reward" not in batch
    np.testing.assert_array_equal(batch["obs/flag"], counts % 2)
    np.testing.assert_array_equal(batch["n_return"], np.where(counts < 4, counts + 1 + 0.5 * (counts + 2), 5.0))
    np.testing.assert_array_equal(batch["discount"], np.where(counts < 3, 0.25, 0.0))
    follows = counts < 3
    np.testing.assert_array_equal(batch["next_obs/count"][follows, 1], counts[follows] + 2)
    np.testing.assert_array_equal(batch["next_obs/flag"][follows], counts[follows] % 2)


def test_transitions_of_an_environment_are_drawn_from_its_columns(new_table: Callable[..., Table]) -> None:
    env = Counting()
    table = new_table(columns=transition_columns(env), steps=Transitions(n_step=2, gamma=0.5))
    with table.writer() as writer:
        recorded = RecordSteps(env, writer)
        recorded.reset()
        for _ in range(5):
            recorded.step(recorded.action_space.sample())
    check_transitions_of_two_steps(table)


def test_a_vector_environment_has_the_columns_of_each_of_its_environments(new_table: Callable[..., Table]) -> None:
    envs = SyncVectorEnv([Counting] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    assert transition_columns(envs) == transition_columns(Counting())
    table = new_table(columns=transition_columns(envs), steps=Transitions(n_step=2, gamma=0.5))
    with table.writer(streams=3) as writer:
        recorded = RecordSteps(envs, writer)
        recorded.reset()
        for _ in range(5):
            recorded.step(recorded.action_space.sample())
    check_transitions_of_two_steps(table)
