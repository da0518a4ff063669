from __future__ import annotations

import pytest
from replay_agent.schedules import LinearSchedule
from replay_agent.seeds import BLOCK, SeedPurpose, episode_seeds, training_seed


def test_a_schedule_goes_in_a_line_and_stays_at_its_end() -> None:
    schedule = LinearSchedule(start=1.0, end=0.2, steps=100)
    assert [schedule(step) for step in (0, 25, 50, 100, 1_000_000)] == pytest.approx([1.0, 0.8, 0.6, 0.2, 0.2])


def test_beta_ends_at_exactly_one() -> None:
    assert LinearSchedule(0.4, 1.0, 60_000)(60_000) == 1.0


def test_a_schedule_of_no_steps_is_at_its_end_at_once() -> None:
    assert LinearSchedule(1.0, 0.05, 0)(0) == 0.05


def test_seeds_of_training_validation_and_evaluation_never_meet() -> None:
    seen = [
        {seed for run in range(20) for seed in episode_seeds(purpose, run, 200)}
        for purpose in (SeedPurpose.VALIDATION, SeedPurpose.EVALUATION)
    ]
    seen.append({training_seed(run, actor) for run in range(20) for actor in range(50)})
    assert [len(seeds) for seeds in seen] == [4000, 4000, 1000]
    assert len(set.union(*seen)) == 9000


def test_seeds_stay_in_the_range_that_gymnasium_takes() -> None:
    seeds = episode_seeds(SeedPurpose.EVALUATION, 2**62 + 5, 100)
    assert min(seeds) >= 0
    assert max(seeds) < 2**32


def test_more_episodes_than_a_run_has_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        episode_seeds(SeedPurpose.EVALUATION, 0, BLOCK + 1)
