"""What learners compute from sequences: priorities for recurrent networks, and goals in hindsight (HER).

td = ...                                        # TD errors [batch, positions]
sampler.update_priorities(batch, sequence_priorities(td, batch["mask"]))

goals = hindsight_goals(batch["achieved_goal"], batch["mask"], rng)
reward = env.unwrapped.compute_reward(batch["achieved_goal"][:, 1], goals, {})
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from replay_client.errors import InvalidArgumentError

A = TypeVar("A")
GoalStrategy = Literal["future", "final", "episode"]
"""Which goals of an episode are chosen in hindsight; see `hindsight_goals`."""
GOAL_STRATEGIES: Final[tuple[GoalStrategy, ...]] = get_args(GoalStrategy)


def sequence_priorities(td: A, mask: Any, eta: float = 0.9) -> A:
    """Return the priority of each sequence: ``eta * max + (1 - eta) * mean`` of the absolute TD errors of its steps.

    See Kapturowski et al. 2019, section 2.3. Exclude the burn-in: pass only positions from ``burn_in`` on.

    Args:
        td: TD errors, float[b, positions]; an array, or a torch tensor on any device.
        mask: bool[b, positions], of the same library: which positions count. If none counts, the priority is 0.
        eta: weight of the largest error, 0 to 1.

    Returns:
        The priorities, float[b], of the same library and on the same device as ``td``.

    Raises:
        InvalidArgumentError: for shapes that differ, or an eta out of range.
    """
    if not 0.0 <= eta <= 1.0:
        raise InvalidArgumentError.of_field("eta", "0 to 1", repr(eta))
    errors: Any = td
    if len(np.shape(errors)) != 2 or tuple(np.shape(errors)) != tuple(np.shape(mask)):
        raise InvalidArgumentError.of_field(
            "mask", f"the shape [b, places] of td, {list(np.shape(errors))}", f"{list(np.shape(mask))}"
        )
    if not hasattr(errors, "detach"):
        errors = np.asarray(errors)
        counted = np.where(mask, np.abs(errors), 0)
        largest = counted.max(axis=1)
        steps = np.maximum(np.sum(mask, axis=1, dtype=counted.dtype), 1)
    else:
        counted = errors.detach().abs().masked_fill(~mask.bool(), 0)
        largest = counted.amax(dim=1)
        steps = mask.sum(dim=1).clamp(min=1).to(counted.dtype)
    made: A = eta * largest + (1.0 - eta) * counted.sum(1) / steps
    return made


def hindsight_goals(
    achieved: NDArray[Any],
    mask: NDArray[np.bool_],
    rng: np.random.Generator,
    *,
    strategy: GoalStrategy = "future",
    burn_in: int = 0,
) -> NDArray[Any]:
    """Choose a goal for each sequence among those that its episode achieved (Andrychowicz et al. 2017, section 3.3).

    The table draws sequences with ``period=1``, so each step of an episode is an anchor. A step achieves the goal in
    the observation after it. If a sequence ends before its episode, only goals within the sequence are chosen. With a
    length above the steps of the longest episode, this does not happen.

    Args:
        achieved: achieved goals ``[b, burn_in + length, *shape]`` of sequences, with a length of at least 2.
        mask: bool[b, burn_in + length]: which positions hold a step; see `Mask`.
        rng: chooses among the goals, each with the same probability.
        strategy: ``"future"``: a goal that the anchor or a later step achieved; ``"final"``: the one that the last step
            achieved; ``"episode"``: one of any step, which needs a burn-in as long as the longest episode.
        burn_in: the table's `burn_in`; the anchor is at this position.

    Returns:
        The goals, ``[b, *shape]``.

    Raises:
        InvalidArgumentError: the shapes differ, the sequences are too short, or the strategy is unknown.
    """
    if strategy not in GOAL_STRATEGIES:
        raise InvalidArgumentError.of_field("strategy", " or ".join(map(repr, GOAL_STRATEGIES)), repr(strategy))
    width = mask.shape[1] if mask.ndim == 2 else 0
    if width < burn_in + 2:
        expected = f"bool[b, {burn_in} + length], with a length of at least 2"
        raise InvalidArgumentError.of_field("mask", expected, f"{mask.dtype}{list(mask.shape)}")
    if achieved.shape[:2] != mask.shape:
        expected = f"the shape {list(mask.shape)} of the mask, and that of a goal"
        raise InvalidArgumentError.of_field("achieved", expected, f"{list(achieved.shape)}")
    first_steps = burn_in - mask[:, :burn_in].sum(axis=1)
    last_goals = np.minimum(first_steps + mask.sum(axis=1), width - 1)
    if strategy == "final":
        positions = last_goals
    else:
        first_goals = first_steps + 1 if strategy == "episode" else burn_in + 1
        positions = rng.integers(first_goals, last_goals, endpoint=True)
    chosen: NDArray[Any] = achieved[np.arange(len(mask)), positions]
    return chosen
