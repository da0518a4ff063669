"""Statistics over runs, compared with their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from experiments.compare.defaults import ReplayMethod
from experiments.compare.runs import Contestant, CurvePoint, TrainingKey
from experiments.compare.statistics import interquartile_mean, mean, probability_of_improvement
from experiments.compare.summary import groups_of

RUNS = np.array([9.0, 1.0, 5.0, 6.0, 100.0, 4.0, 7.0, -50.0])


def test_the_interquartile_mean_leaves_out_a_quarter_of_the_runs_at_either_end() -> None:
    assert interquartile_mean(RUNS).value == np.mean([4.0, 5.0, 6.0, 7.0])


def test_the_probability_of_improvement_counts_pairs_and_halves_of_equals() -> None:
    others = np.array([5.0, 8.0, 5.0])
    pairs = [1.0 if run > other else 0.5 if run == other else 0.0 for run in RUNS for other in others]
    assert probability_of_improvement(RUNS, others).value == pytest.approx(np.mean(pairs))


def test_a_95_percent_interval_holds_the_truth_about_95_percent_of_the_time() -> None:
    random = np.random.default_rng(0)
    estimates = [mean(random.normal(3.0, 1.0, 40)) for _ in range(300)]
    assert 0.89 <= np.mean([estimate.low <= 3.0 <= estimate.high for estimate in estimates]) <= 0.99


def test_intervals_repeat_and_hold_the_value() -> None:
    for estimate in (mean(RUNS), interquartile_mean(RUNS), probability_of_improvement(RUNS, RUNS + 1.0)):
        assert estimate.low < estimate.value < estimate.high
    assert mean(RUNS) == mean(RUNS)


def test_one_run_has_no_interval() -> None:
    found = mean(np.array([2.0]))
    assert (found.low, found.value, found.high) == (2.0, 2.0, 2.0)


def test_equal_runs_are_as_good_as_each_other() -> None:
    same = np.full(4, 7.0)
    found = probability_of_improvement(same, same)
    assert found.value == 0.5
    assert found.low == pytest.approx(1 - found.high)


@pytest.mark.parametrize(("runs", "low"), [(1, 0.206), (2, 0.386), (3, 0.501), (10, 0.800), (100, 0.980)])
def test_a_method_that_was_always_better_is_certain_only_after_many_runs(runs: int, low: float) -> None:
    worse = np.linspace(0.0, 1.0, runs)
    better = worse + 2.0
    found, opposite = probability_of_improvement(better, worse), probability_of_improvement(worse, better)
    assert (found.value, found.high, opposite.value, opposite.low) == (1.0, 1.0, 0.0, 0.0)
    assert found.low == pytest.approx(low, abs=0.01)
    assert opposite.high == pytest.approx(1 - found.low)


def test_the_interval_of_the_probability_of_improvement_holds_the_truth_about_95_percent_of_the_time() -> None:
    random = np.random.default_rng(0)
    truth = float(stats.norm.cdf(1.0 / np.sqrt(2)))
    found = [probability_of_improvement(random.normal(1.0, 1.0, 5), random.normal(0.0, 1.0, 5)) for _ in range(1000)]
    assert 0.93 <= np.mean([estimate.low <= truth <= estimate.high for estimate in found]) <= 0.99


def test_runs_that_were_validated_at_other_steps_are_compared_at_the_same_ones() -> None:
    contestant = Contestant(ReplayMethod.UNIFORM, 1.0)

    def curve(seed: int, steps: list[int]) -> list[CurvePoint]:
        return [CurvePoint(TrainingKey(contestant, seed), step, step / 1000) for step in steps]

    whole, killed = curve(0, [1000, 2000, 3000, 4000, 5000, 6000]), curve(1, [1000, 3700, 4000, 5000])
    (group,) = groups_of({points[0].key: points for points in (whole, killed)})
    assert group.steps.tolist() == [1000, 2000, 3000, 4000, 5000]
    assert group.returns.tolist() == [[1.0, 2.0, 3.0, 4.0, 5.0]] * 2
