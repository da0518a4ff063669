"""Names of backends, and checks of their parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from replay_proto.errors import FieldError
from replay_server.backends import (
    BACKENDS,
    RankIndex,
    RankParameters,
    SumTree,
    SumTreeParameters,
    UniformIndex,
    UniformParameters,
    make_index,
)
from replay_server.backends.index import read_parameters


def make_parameters(backend: str, given: Mapping[str, Any]) -> object:
    return read_parameters(BACKENDS[backend].Parameters, backend, given)


def test_what_is_not_given_has_its_default() -> None:
    assert make_parameters("sum_tree", {}) == SumTreeParameters(alpha=0.6, epsilon=1e-6, max_priority=None)
    assert make_parameters("sum_tree", {"alpha": 1}) == SumTreeParameters(alpha=1.0)
    assert make_parameters("rank", {}) == RankParameters(alpha=0.6)
    assert make_parameters("uniform", {}) == UniformParameters()


@pytest.mark.parametrize(
    ("backend", "field", "value", "expected"),
    [
        ("sum_tree", "alpha", -0.1, "at least 0"),
        ("sum_tree", "alpha", math.nan, "finite"),
        ("sum_tree", "alpha", math.inf, "finite"),
        ("sum_tree", "epsilon", -1e-9, "at least 0"),
        ("sum_tree", "epsilon", math.inf, "finite"),
        ("sum_tree", "max_priority", 0.0, "above 0"),
        ("sum_tree", "max_priority", math.nan, "finite"),
        ("sum_tree", "beta", 0.4, "alpha, epsilon, max_priority"),
        ("rank", "alpha", math.nan, "finite"),
        ("rank", "alpha", "much", "number"),
        ("rank", "epsilon", 0.1, "a parameter of rank (alpha)"),
        ("uniform", "alpha", 0.6, "it has none"),
    ],
)
def test_a_wrong_parameter_is_named_with_what_was_expected_and_what_came(
    backend: str, field: str, value: float, expected: str
) -> None:
    with pytest.raises(FieldError) as caught:
        make_parameters(backend, {field: value})
    assert caught.value.field == field
    assert expected in caught.value.expected
    assert caught.value.got == repr(value)


def test_each_name_of_the_contract_makes_its_own_backend() -> None:
    expected = {"sum_tree": SumTree, "rank": RankIndex, "uniform": UniformIndex}
    assert {*BACKENDS} == {*expected}
    for name, kind in expected.items():
        assert type(make_index(name, {}, np.zeros(4))) is kind
