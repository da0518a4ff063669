from __future__ import annotations

import pytest
from replay_agent.acting.seeds import RunSeeds, environment_seed, exploration
from replay_agent.training.schedules import LinearSchedule


def test_a_schedule_goes_in_a_line_and_stays_at_its_end() -> None:
    schedule = LinearSchedule(start=1.0, end=0.2, steps=100)
    assert [schedule(step) for step in (0, 25, 50, 100, 1_000_000)] == pytest.approx([1.0, 0.8, 0.6, 0.2, 0.2])


def test_beta_ends_at_exactly_one() -> None:
    assert LinearSchedule(0.4, 1.0, 60_000)(60_000) == 1.0


def test_a_schedule_of_no_steps_is_at_its_end_at_once() -> None:
    assert LinearSchedule(1.0, 0.05, 0)(0) == 0.05


def test_seeds_of_training_validation_and_evaluation_never_meet() -> None:
    runs = [RunSeeds(seed) for seed in range(20)]
    seen = [
        {seed for run in runs for number in range(3) for seed in run.validation(number, 100)},
        {seed for run in runs for seed in run.evaluation(200)},
        {environment_seed(run.actor(actor)) for run in runs for actor in range(50)},
    ]
    assert [len(seeds) for seeds in seen] == [6000, 4000, 1000]
    assert len(set.union(*seen)) == 11_000


def test_no_integer_seeds_two_generators() -> None:
    runs = [RunSeeds(seed, start) for seed in range(5) for start in range(3)]
    actors = [run.actor(actor) for run in runs for actor in range(20)]
    used = [
        *range(5),
        *{run.network for run in runs},
        *{run.draws for run in runs},
        *actors,
        *(environment_seed(actor) for actor in actors),
    ]
    assert len(set(used)) == len(used)


def test_a_resumed_run_acts_with_new_random_numbers_and_keeps_its_other_seeds() -> None:
    first, resumed = RunSeeds(7), RunSeeds(7, start=1)
    uniforms = [exploration(run.actor(1)).random(4).tolist() for run in (first, RunSeeds(7), resumed)]
    assert uniforms[0] == uniforms[1]
    assert uniforms[0] != uniforms[2]
    assert (first.network, first.draws) == (resumed.network, resumed.draws)
    assert first.evaluation(10) == resumed.evaluation(10)


def test_seeds_stay_in_the_range_that_gymnasium_takes() -> None:
    seeds = RunSeeds(2**62 + 5).evaluation(5_000)
    assert len(set(seeds)) == 5_000
    assert min(seeds) >= 0
    assert max(seeds) < 2**32
