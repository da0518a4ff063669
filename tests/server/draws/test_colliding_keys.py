"""Keys chosen to collide in a hash table cost no more than others."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from replay_server.table.updates import resolve_update

Keys = NDArray[np.int64]

COUNT = 1 << 14
END = 1 << 62
"""Live keys are below this."""
ALLOWED = 20.0
"""Allowed ratio to the time of random keys. If collisions can be provoked, the ratio is a thousand."""
GOLDEN = 0x9E3779B97F4A7C15
MIX_1, MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
KNOWN = 0x1234_5678_9ABC_DEF0
WORD = 1 << 64
STORED = np.ones(1)
"""Priorities of a table with one slot, which all keys share."""


def random_keys() -> Keys:
    return np.random.default_rng(1).integers(0, END, COUNT)


def multiples_of_no_place() -> Keys:
    """Keys that Fibonacci hashing (multiplication by the golden ratio) maps to the lowest places."""
    inverse = pow(GOLDEN, -1, WORD)
    return live_of(np.arange(8 * COUNT, dtype=np.uint64) * np.uint64(inverse))


def colliding_with(secret: int) -> Keys:
    """Keys that all hash to place 0, computed by inverting the hash with the secret."""
    mixed = np.arange(8 * COUNT, dtype=np.uint64) * np.uint64(pow(MIX_2, -1, WORD))
    mixed = unshifted(mixed, 27) * np.uint64(pow(MIX_1, -1, WORD))
    return live_of(unshifted(mixed, 30) ^ np.uint64(secret))


def unshifted(mixed: NDArray[np.uint64], shift: int) -> NDArray[np.uint64]:
    """Invert x ^ (x >> shift)."""
    x = mixed
    for _ in range(64 // shift):
        x = mixed ^ (x >> np.uint64(shift))
    return x


def live_of(keys: NDArray[np.uint64]) -> Keys:
    live = keys[keys < END].astype(np.int64)[:COUNT]
    assert len(live) == COUNT
    return live


def duration_s(keys: Keys, secret: int | None = None) -> float:
    """Shortest CPU time of several updates of these keys; also checks the result."""
    priorities = np.arange(len(keys), dtype=np.float64)
    known = {} if secret is None else {"secret": secret}
    best = np.inf
    for _ in range(5):
        began = time.thread_time()
        resolved = resolve_update(keys, priorities, 0, END, STORED, **known)
        best = min(best, time.thread_time() - began)
        assert dict(zip(resolved.keys.tolist(), resolved.priorities.tolist(), strict=True)) == dict(
            zip(keys.tolist(), priorities.tolist(), strict=True)
        )
        if best < 0.01:
            break
    return float(best)


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(multiples_of_no_place, id="against Fibonacci hashing"),
        pytest.param(lambda: colliding_with(0), id="against this hash without a secret"),
        pytest.param(lambda: colliding_with(KNOWN), id="against this hash with another secret"),
        *(
            pytest.param(lambda step=step: np.arange(COUNT) * step, id=f"in steps of {step}")
            for step in (1, 2, 3, 64, 1000, 1 << 16, 1 << 32, 1 << 47, (1 << 47) + 1, GOLDEN >> 20)
        ),
        pytest.param(lambda: np.zeros(COUNT, np.int64), id="all the same"),
    ],
)
def test_keys_that_are_chosen_to_collide_take_no_longer_than_others(chosen: Callable[[], Keys]) -> None:
    usual = duration_s(random_keys())
    assert duration_s(chosen() % END) < ALLOWED * usual + 0.001


def test_it_is_the_secret_that_keeps_keys_apart() -> None:
    """The attack works if the attacker knows the secret."""
    keys = colliding_with(KNOWN)
    assert duration_s(keys, KNOWN) > ALLOWED * duration_s(keys)


def test_the_secret_changes_nothing_but_places() -> None:
    keys, priorities = random_keys(), np.ones(COUNT)
    apart = [resolve_update(keys, priorities, 0, END, STORED, secret=secret) for secret in (0, KNOWN)]
    for resolved in apart:
        assert np.array_equal(resolved.keys, keys)
