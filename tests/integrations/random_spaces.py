"""Random spaces, values of them with NaN, infinity and extremes, and environments that remember what they made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces

Rng = np.random.Generator

INTEGERS: Final = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
FLOATS: Final = ["float16", "float32", "float64"]


def random_shape(rng: Rng, most: int = 3) -> tuple[int, ...]:
    return tuple(rng.integers(1, 4, size=rng.integers(most + 1)).tolist())


def random_box(rng: Rng) -> spaces.Space[Any]:
    dtype: Any = np.dtype(rng.choice(FLOATS if rng.integers(2) else INTEGERS))
    bounds: Any = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return spaces.Box(bounds[0], bounds[1], random_shape(rng), dtype.type)


def random_plain(rng: Rng) -> spaces.Space[Any]:
    """A space whose values are single arrays or numbers."""
    kind = rng.integers(5)
    if kind < 2:
        return random_box(rng)
    if kind == 2:
        return spaces.Discrete(int(rng.integers(1, 50)), start=int(rng.integers(-5, 6)))
    if kind == 3:
        return spaces.MultiDiscrete(rng.integers(1, 9, size=rng.integers(1, 4)))
    return spaces.MultiBinary(int(rng.integers(1, 6)))


def random_space(rng: Rng, depth: int = 2, *, tuples: bool = True) -> spaces.Space[Any]:
    """A space that may be nested in mappings and, unless `tuples` is False, in tuples."""
    if not depth or rng.random() < 0.5:
        return random_plain(rng)
    parts = [random_space(rng, depth - 1, tuples=tuples) for _ in range(rng.integers(1, 4))]
    if tuples and rng.random() < 0.4:
        return spaces.Tuple(parts)
    return spaces.Dict({f"p{number}": part for number, part in enumerate(parts)})


def random_value(rng: Rng, space: spaces.Space[Any]) -> Any:
    """A value of a space; floating-point numbers are often NaN, infinite, subnormal or negative zero."""
    if isinstance(space, spaces.Dict):
        return {name: random_value(rng, part) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(random_value(rng, part) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        return np.int64(space.start + rng.integers(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return rng.integers(space.nvec).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(2, size=space.shape).astype(np.int8)
    assert space.dtype is not None
    if space.dtype.kind != "f":
        bounds = np.iinfo(space.dtype)
        return rng.integers(bounds.min, bounds.max, size=space.shape, dtype=space.dtype.type, endpoint=True)
    tiny = np.finfo(space.dtype).smallest_subnormal
    odd = np.array([np.nan, np.inf, -np.inf, -0.0, tiny, np.finfo(space.dtype).max])
    values = np.where(rng.random(space.shape) < 0.3, rng.choice(odd, space.shape), rng.normal(size=space.shape))
    return np.asarray(values, space.dtype)


def stacked(values: list[Any]) -> Any:
    """Stack values of a space, as vector environments do."""
    first = values[0]
    if isinstance(first, Mapping):
        return {name: stacked([value[name] for value in values]) for name in first}
    if isinstance(first, tuple):
        return tuple(stacked([value[place] for value in values]) for place in range(len(first)))
    return np.stack(values)


def bits(value: Any, row: int | None = None) -> Any:
    """What a value is, bit by bit, with its dtypes: hashable; of one row, if it is stacked."""
    if isinstance(value, Mapping):
        return tuple((name, bits(value[name], row)) for name in sorted(value))
    if isinstance(value, tuple | list):
        return tuple(bits(part, row) for part in value)
    array = np.asarray(value)
    array = array if row is None else array[row]
    return array.dtype.name, array.shape, array.tobytes()


@dataclass
class Made:
    """An episode that an environment made."""

    observations: list[Any]
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    is_terminated: bool = False
    is_truncated: bool = False


class RandomEnv(gymnasium.Env[Any, Any]):
    """Episodes of 1 to 5 steps with random values, which end in a terminal state, are truncated, or both."""

    def __init__(self, seed: int, observed: spaces.Space[Any], acting: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observed, acting
        self.made: list[Made] = []
        self._rng = np.random.default_rng(seed)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        first = random_value(self._rng, self.observation_space)
        self.made.append(Made([first]))
        return first, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        episode, end = self.made[-1], self._rng.random()
        assert not self._is_over(episode), "stepped after the end"
        episode.observations.append(random_value(self._rng, self.observation_space))
        episode.actions.append(action)
        episode.rewards.append(float(self._rng.integers(-40, 40)) / 4)
        is_over = len(episode.rewards) == 5
        episode.is_terminated, episode.is_truncated = bool(end < 0.2), bool(0.1 < end < 0.3 or is_over)
        return (
            episode.observations[-1],
            episode.rewards[-1],
            episode.is_terminated,
            episode.is_truncated,
            {},
        )

    @property
    def finished(self) -> list[Made]:
        """The episodes that are over."""
        return [made for made in self.made if self._is_over(made)]

    def _is_over(self, made: Made) -> bool:
        return made.is_terminated or made.is_truncated
