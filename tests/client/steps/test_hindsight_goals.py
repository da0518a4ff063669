"""Goals in hindsight: which ones may be chosen, each equally often, and which arguments are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from replay_client import InvalidArgumentError, hindsight_goals
from scipy.stats import chisquare

DRAWS = 6000


def sequence(steps: int, anchor: int, burn_in: int, length: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The achieved goals and the mask of a sequence: ``achieved[i]`` is the number of its observation in the episode.

    The episode has this many steps, thus one observation more; the sequence has the anchor at position ``burn_in``.
    """
    numbers = np.arange(-burn_in, length) + anchor
    return np.where((numbers >= 0) & (numbers <= steps), numbers, -1), (numbers >= 0) & (numbers < steps)


def allowed(strategy: str, steps: int, anchor: int, burn_in: int, length: int) -> list[int]:
    """Numbers of the observations whose goals may be chosen: that after a step is what the step achieved."""
    last = min(steps, anchor + length - 1)
    first = max(0, anchor - burn_in)
    return {
        "future": range(anchor + 1, last + 1),
        "final": range(last, last + 1),
        "episode": range(first + 1, last + 1),
    }[strategy]  # type: ignore[return-value]


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize(
    ("steps", "anchor", "burn_in", "length"),
    [(5, 0, 0, 6), (5, 2, 0, 6), (5, 4, 0, 6), (1, 0, 0, 2), (5, 2, 5, 6), (5, 4, 5, 6), (9, 4, 3, 4), (9, 8, 2, 2)],
)
def test_each_allowed_goal_is_chosen_equally_often(
    strategy: Any, steps: int, anchor: int, burn_in: int, length: int
) -> None:
    achieved, mask = sequence(steps, anchor, burn_in, length)
    chosen = hindsight_goals(
        np.tile(achieved, (DRAWS, 1)),
        np.tile(mask, (DRAWS, 1)),
        np.random.default_rng(0),
        strategy=strategy,
        burn_in=burn_in,
    )
    expected = list(allowed(strategy, steps, anchor, burn_in, length))
    found, counts = np.unique(chosen, return_counts=True)
    assert found.tolist() == expected
    assert len(counts) == 1 or chisquare(counts).pvalue > 1e-6


def test_each_sequence_gets_a_goal_of_its_own() -> None:
    achieved = np.arange(4 * 3 * 2).reshape(4, 3, 2)
    mask = np.array([[True, False, False], [True, True, False], [True, True, True], [True, False, False]])
    goals = hindsight_goals(achieved, mask, np.random.default_rng(0), strategy="final")
    assert goals.tolist() == [
        achieved[0, 1].tolist(),
        achieved[1, 2].tolist(),
        achieved[2, 2].tolist(),
        achieved[3, 1].tolist(),
    ]


WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("strategy", ((2, 3), (2, 3)), {"strategy": "past"}),
    ("mask", ((2, 1), (2, 1)), {}),
    ("mask", ((2, 4), (2, 4)), {"burn_in": 3}),
    ("mask", ((2, 3), (6,)), {}),
    ("achieved", ((2, 4), (2, 3)), {}),
    ("achieved", ((3, 3), (2, 3)), {}),
]


@pytest.mark.parametrize(("field", "shapes", "options"), WRONG, ids=str)
def test_wrong_arguments_are_named(field: str, shapes: tuple[Any, ...], options: dict[str, Any]) -> None:
    achieved, mask = np.zeros(shapes[0]), np.ones(shapes[1], bool)
    with pytest.raises(InvalidArgumentError, match=f"^{field}: expected") as refusal:
        hindsight_goals(achieved, mask, np.random.default_rng(0), **options)
    assert refusal.value.metadata["field"] == field
