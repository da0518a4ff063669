"""Rejection by rank, with shards that are sorted lists instead of servers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from replay_client._shards import ranked_step
from replay_client._shards.mass import shard_chances
from replay_client._shards.power_sums import power_sum
from replay_client._shards.ranked_step import Answer, Question, RankedStep
from replay_client.batch import Batch
from replay_proto.v1 import replay_pb2
from scipy import stats

RANDOM = np.random.default_rng(5)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.6, 1.0, 1.0000001, 1.5, 20.0, 700.0])
@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 1000, 100_000])
def test_power_sums_are_those_of_the_single_terms(count: int, alpha: float) -> None:
    exact = math.fsum((np.arange(1, count + 1, dtype=np.float64) ** -alpha).tolist())
    assert power_sum(count, alpha) == pytest.approx(exact, rel=2e-15)


def test_a_power_sum_of_many_terms_takes_no_time() -> None:
    assert power_sum(10**12, 1.0) == pytest.approx(math.log(10**12) + 0.5772156649015329, rel=1e-12)
    assert power_sum(10**9, 1e308) == 1.0


class SortedShard:
    """Answers questions as a server with the backend "rank" does."""

    def __init__(self, priorities: NDArray[np.float64], alpha: float) -> None:
        self.priorities = np.sort(priorities)[::-1]  # the key of each row is its index
        masses = np.arange(1, len(priorities) + 1, dtype=np.float64) ** -alpha
        self.state = replay_pb2.TableState(
            total_mass=masses.sum(), size=len(masses), drawable=len(masses), inserted=len(masses)
        )
        self._masses = masses / masses.sum()

    def answer(self, question: Question) -> Answer:
        keys = RANDOM.choice(len(self._masses), question.draws, p=self._masses)
        larger = np.searchsorted(-self.priorities, -question.priorities, side="left")
        batch = batch_of(question.keys) if len(question.keys) else None
        return Answer(keys, keys + 1, self.priorities[keys], larger, batch, self.state)


def batch_of(keys: NDArray[np.int64]) -> Batch:
    return Batch(
        row_keys=keys,
        columns={},
        probabilities=np.empty(0),
        weights=np.empty(0, np.float32),
        beta=0.0,
        size=0,
        drawable=0,
        total_mass=0.0,
        smallest_probability=0.0,
        inserted=0,
    )


def draw(shards: list[SortedShard], rows: int, alpha: float, chances: dict[int, float]) -> tuple[RankedStep, int]:
    """Draw a batch; return its step and the number of proposals."""
    step = RankedStep(replay_pb2.Draw(batch_size=rows), {}, {}, alpha=alpha, random=RANDOM)
    states = {number: shard.state for number, shard in enumerate(shards)}
    proposals = 0
    while not step.is_complete:
        due = step.begin_round(chances, states)
        while due:
            proposals += sum(question.draws for question in due.values())
            answers = [(number, question, shards[number].answer(question)) for number, question in due.items()]
            due = {}
            for number, question, answer in answers:
                due |= step.answered(number, question, answer)
    return step, proposals


def chances_of(shards: list[SortedShard]) -> dict[int, float]:
    masses = [shard.state.total_mass for shard in shards]
    return dict(enumerate(shard_chances(masses, [1] * len(shards))))


def expected_of(shards: list[SortedShard], alpha: float) -> dict[tuple[int, int], float]:
    """The probability of each row, by shard and key."""
    rows = [
        (-priority, shard, key) for shard, each in enumerate(shards) for key, priority in enumerate(each.priorities)
    ]
    total = power_sum(len(rows), alpha)
    return {(shard, key): (rank + 1) ** -alpha / total for rank, (_, shard, key) in enumerate(sorted(rows))}


def p_value(step: RankedStep, expected: dict[tuple[int, int], float]) -> float:
    counts = dict.fromkeys(expected, 0)
    for shard, _, part in step.parts:
        for key, count in zip(*np.unique(part.row_keys, return_counts=True), strict=True):
            counts[shard, int(key)] += int(count)
    exact = np.array(list(expected.values())) * step.draw.batch_size
    return float(stats.chisquare(list(counts.values()), exact).pvalue)


@pytest.fixture(params=[0.6, 1.0])
def alpha(request: pytest.FixtureRequest) -> float:
    return float(request.param)


@pytest.fixture
def shards(alpha: float) -> list[SortedShard]:
    """Three shards of different sizes, with equal priorities in each and in several of them."""
    random = np.random.default_rng(1)
    sizes = (300, 40, 160)
    return [SortedShard(np.floor(random.random(size) * 90 * number), alpha) for number, size in enumerate(sizes, 1)]


def test_accepted_rows_have_the_probability_of_their_rank(shards: list[SortedShard], alpha: float) -> None:
    expected = expected_of(shards, alpha)
    step, _ = draw(shards, 300_000, alpha, chances_of(shards))
    assert p_value(step, expected) > 0.001
    for shard, _, part in step.parts:
        exact = [expected[shard, key] for key in part.row_keys.tolist()]
        np.testing.assert_allclose(part.probabilities, exact, rtol=1e-12)


def test_the_part_of_accepted_rows_is_that_of_the_masses(
    shards: list[SortedShard], alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranked_step, "_SPREADS", -5.0)  # too few proposals, so that no accepted row is left over
    due = {}
    step = RankedStep(replay_pb2.Draw(batch_size=300_000), {}, {}, alpha=alpha, random=RANDOM)
    states = {number: shard.state for number, shard in enumerate(shards)}
    due = step.begin_round(chances_of(shards), states)
    proposals = sum(question.draws for question in due.values())
    while due:
        answers = [(number, question, shards[number].answer(question)) for number, question in due.items()]
        due = {}
        for number, question, answer in answers:
            due |= step.answered(number, question, answer)
    masses = sum(shard.state.total_mass for shard in shards)
    assert (300_000 - step.missing) / proposals == pytest.approx(power_sum(500, alpha) / masses, rel=0.02)


def test_rows_have_the_probability_of_their_rank_however_old_the_masses_are(
    shards: list[SortedShard], alpha: float
) -> None:
    chances = {0: 0.5, 1: 0.2, 2: 0.3}
    step, _ = draw(shards, 300_000, alpha, chances)
    assert p_value(step, expected_of(shards, alpha)) > 0.001


def test_draws_without_rejection_would_be_noticed(
    shards: list[SortedShard], alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RankedStep, "_count", lambda *_: None)
    step, _ = draw(shards, 300_000, alpha, chances_of(shards))
    assert p_value(step, expected_of(shards, alpha)) < 1e-9


def test_a_single_shard_needs_no_rejection(shards: list[SortedShard], alpha: float) -> None:
    step, proposals = draw(shards[:1], 1000, alpha, {0: 1.0})
    assert proposals == 1000
    assert step.smallest_probability() == pytest.approx(300**-alpha / power_sum(300, alpha))


def test_answers_from_before_a_restart_are_ignored(shards: list[SortedShard], alpha: float) -> None:
    step = RankedStep(replay_pb2.Draw(batch_size=10), {}, {}, alpha=alpha, random=RANDOM)
    states = {number: shard.state for number, shard in enumerate(shards)}
    old = step.begin_round(chances_of(shards), states)
    step.restart()
    step.begin_round(chances_of(shards[:2]), states)
    for number, question in old.items():
        assert step.answered(number, question, shards[number].answer(question)) == {}
    assert step.phase == 0
