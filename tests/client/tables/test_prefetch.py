"""Samplers choose how many batches to keep in flight."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from replay_client import InvalidArgumentError, Table
from replay_client._learning.prefetch import FEWEST, MOST, PrefetchTuner

from tests.client.numbered import rows

NewTable = Callable[..., Table]
STEPS = 40_000
US = 1e-6


def learner(compute_s: float, round_trip_s: float, batch_s: float) -> Callable[[int], tuple[float, float]]:
    """The time of a step, and the part of it spent on waiting, by the number of batches in flight."""

    def step(prefetch: int) -> tuple[float, float]:
        wait = max(batch_s, (round_trip_s + batch_s) / prefetch - compute_s)
        return compute_s + wait, wait

    return step


def chosen(step: Callable[[int], tuple[float, float]], *, noise: float = 0.1) -> list[int]:
    """The number of batches in flight at each step of a simulated learner."""
    noisy, tuner, now, numbers = random.Random(1), PrefetchTuner(), 0.0, []
    for _ in range(STEPS):
        whole, waited = step(tuner.prefetch)
        now += whole * noisy.uniform(1 - noise, 1 + noise)
        tuner.stepped(now - waited, now)
        numbers.append(tuner.prefetch)
    return numbers


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        pytest.param(learner(5000 * US, 500 * US, 100 * US), 2, id="computes longer than a batch takes"),
        pytest.param(learner(10 * US, 500 * US, 20 * US), 16, id="computes nothing"),
        pytest.param(learner(1000 * US, 3000 * US, 20 * US), 4, id="distant server"),
        pytest.param(learner(1000 * US, 9000 * US, 20 * US), 16, id="very distant server"),
        pytest.param(learner(100 * US, 100 * US, 900 * US), 2, id="waits for the data rather than the delay"),
    ],
)
def test_it_takes_as_few_as_keep_the_learner_from_waiting(
    step: Callable[[int], tuple[float, float]], expected: int
) -> None:
    numbers = chosen(step)
    settled = Counter(numbers[STEPS // 4 :])
    assert settled[expected] > 0.9 * settled.total()
    assert {*numbers} <= {2, 4, 8, 16}


def test_it_follows_a_learner_that_changes() -> None:
    fast, slow = learner(10 * US, 500 * US, 20 * US), learner(5000 * US, 500 * US, 20 * US)
    count = itertools.count()
    numbers = chosen(lambda prefetch: (fast if next(count) < STEPS // 4 else slow)(prefetch))
    assert numbers[STEPS // 4 - 1] == MOST
    assert numbers[-1] == FEWEST


def test_a_sampler_chooses_unless_it_is_told(new_table: NewTable) -> None:
    table = new_table(backend="uniform")
    table.insert(rows(range(100)))
    with table.sampler(8) as sampler:
        assert sampler.prefetch == FEWEST
        seen = set()
        for batch in itertools.islice(sampler, 2000):
            sampler.update_priorities(batch, batch.weights)
            seen.add(sampler.prefetch)
        assert seen > {FEWEST}
        sampler.prefetch = 5
        assert sum(sampler.prefetch == 5 for _ in itertools.islice(sampler, 500)) == 500
        sampler.prefetch = "auto"
        assert sampler.prefetch == FEWEST


@pytest.mark.parametrize(
    "config", [{"backend": "fifo"}, {"backend": "uniform", "samples_per_insert": 100.0, "error_buffer": 1e6}]
)
def test_batches_that_count_as_drawn_are_not_drawn_early(new_table: NewTable, config: dict[str, Any]) -> None:
    table = new_table(capacity=10_000, **config)
    table.insert(rows(range(8000)))
    with table.sampler(1) as sampler:
        assert {sampler.prefetch for _ in itertools.islice(sampler, 2000)} == {FEWEST}


@pytest.mark.parametrize("prefetch", [0, -1, 1.5, "fast"])
def test_other_numbers_are_refused(new_table: NewTable, prefetch: Any) -> None:
    table = new_table(backend="uniform")
    with pytest.raises(InvalidArgumentError, match="prefetch"):
        table.sampler(8, prefetch=prefetch)
