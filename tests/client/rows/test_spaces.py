"""Columns from Gymnasium spaces, and round trips of their values."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from replay_client import Column, InvalidArgumentError, Schema, Table
from replay_client._rows.checks import flattened
from replay_client.spaces import columns_from_space, flatten_value, unflatten_value

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
