from __future__ import annotations

from replay_agent.replay.pacing import Pacer


def pacer_of(ratio: float, learning_starts: int, lead_steps: int) -> Pacer:
    """A pacer whose table has something to draw once it has enough rows."""
    pacer = Pacer(ratio, learning_starts, lead_steps)
    pacer.can_draw = True
    return pacer


def learn_all(pacer: Pacer) -> int:
    """Take every step that is due."""
    taken = 0
    while pacer.owes_update:
        pacer.count_update()
        taken += 1
    return taken


def test_nothing_is_due_before_the_table_has_enough_rows() -> None:
    pacer = pacer_of(ratio=1.0, learning_starts=100, lead_steps=10)
    for _ in range(99):
        pacer.count_own_steps(1)
    assert not pacer.owes_update
    pacer.count_own_steps(1)
    assert learn_all(pacer) == 1


def test_steps_seen_at_once_bring_what_they_would_have_brought_one_by_one() -> None:
    pacer = pacer_of(ratio=0.5, learning_starts=100, lead_steps=10)
    pacer.observe_inserted(150)
    assert pacer.credit == 51 * 0.5
    pacer.attach(inserted=150, size=20)  # another table, with 20 of the 100 rows
    pacer.observe_inserted(150 + 90)
    assert pacer.credit == (51 + 11) * 0.5


def test_gradient_steps_keep_the_ratio_to_own_steps() -> None:
    pacer = pacer_of(ratio=0.25, learning_starts=1, lead_steps=10)
    taken = 0
    for _ in range(400):
        pacer.count_own_steps(1)
        taken += learn_all(pacer)
    assert taken == 100


def test_rows_of_others_count_and_rows_of_ones_own_do_not_count_twice() -> None:
    pacer = pacer_of(ratio=1.0, learning_starts=1, lead_steps=10)
    for _ in range(10):
        pacer.count_own_steps(1)
    pacer.observe_inserted(7)  # the last three are still in flight
    assert pacer.env_steps == 10
    pacer.observe_inserted(25)  # all of its own rows, and 15 from others
    assert pacer.env_steps == 25
    assert learn_all(pacer) == 25


def may_act(pacer: Pacer, inserted: int) -> bool:
    """Whether actors may act that know of so many rows."""
    return inserted < pacer.goal


def test_actors_are_held_while_they_are_ahead_and_go_on_when_the_learner_has_caught_up() -> None:
    pacer = pacer_of(ratio=0.5, learning_starts=1, lead_steps=100)
    assert pacer.goal == 100
    pacer.observe_inserted(300)
    assert pacer.goal == 100  # the learner is 300 steps behind
    for _ in range(100):
        pacer.count_update()
    assert pacer.goal == 300
    for _ in range(50):
        pacer.count_update()
    assert pacer.goal == 400


def test_the_goal_counts_from_the_rows_that_the_table_had() -> None:
    pacer = pacer_of(ratio=1.0, learning_starts=1, lead_steps=10)
    pacer.attach(inserted=5_000, size=50)
    assert pacer.goal == 5_010
    pacer.observe_inserted(5_004)
    pacer.count_closing_row()  # three steps, so that three gradient steps are due
    assert pacer.goal == 5_014 - 4
    for _ in range(4):
        pacer.count_update()
    assert pacer.goal == 5_014


def test_actors_are_not_held_for_a_part_of_a_credit_that_the_learner_cannot_use() -> None:
    pacer = pacer_of(ratio=0.25, learning_starts=1, lead_steps=1)
    pacer.observe_inserted(3)
    assert (pacer.credit, may_act(pacer, 3)) == (0.75, True)
    pacer.observe_inserted(4)
    assert (pacer.credit, may_act(pacer, 4)) == (1.0, False)


def test_actors_are_not_held_while_a_new_table_has_too_few_rows_to_use_old_credit() -> None:
    pacer = pacer_of(ratio=1.0, learning_starts=10, lead_steps=5)
    pacer.observe_inserted(40)
    assert not may_act(pacer, 40)
    pacer.attach(inserted=0, size=0)
    assert not pacer.owes_update
    assert may_act(pacer, 0)


def test_credit_does_not_drift_over_many_steps() -> None:
    pacer = pacer_of(ratio=0.1, learning_starts=1, lead_steps=10)
    taken = 0
    for _ in range(100_000):
        pacer.count_own_steps(1)
        taken += learn_all(pacer)
    assert taken == 10_000


def test_a_new_table_goes_on_where_the_old_one_ended_and_is_filled_before_learning() -> None:
    pacer = pacer_of(ratio=1.0, learning_starts=50, lead_steps=10)
    pacer.observe_inserted(80)  # rows that are lost before any gradient step
    pacer.attach(inserted=0, size=0)
    pacer.observe_inserted(49)
    assert pacer.env_steps == 129
    assert not pacer.owes_update
    pacer.observe_inserted(50)
    assert learn_all(pacer) == 31 + 1  # steps 50 to 80 of the first table, step 50 of the second


def test_rows_that_a_table_has_already_are_not_steps_of_this_run() -> None:
    pacer = pacer_of(ratio=1.0, learning_starts=100, lead_steps=10)
    pacer.attach(inserted=1_000, size=500)
    pacer.observe_inserted(1_003)
    assert pacer.env_steps == 3
    assert learn_all(pacer) == 3


def test_rows_that_came_after_the_last_checkpoint_are_steps_and_bring_the_credit_they_would_have_brought() -> None:
    earlier = pacer_of(ratio=0.5, learning_starts=100, lead_steps=10)
    earlier.observe_inserted(80)
    resumed = pacer_of(ratio=0.5, learning_starts=100, lead_steps=10)
    resumed.attach(inserted=180, size=150)
    resumed.restart(earlier.env_steps, earlier.credit)
    resumed.catch_up(earlier.table_count, inserted=180, size=150)
    assert (resumed.env_steps, resumed.credit) == (180, 81 * 0.5)
    resumed.count_own_steps(1)
    assert (resumed.env_steps, resumed.credit) == (181, 82 * 0.5)


def test_own_steps_whose_rows_the_table_never_got_are_not_counted_twice() -> None:
    earlier = pacer_of(ratio=1.0, learning_starts=1, lead_steps=10)
    for _ in range(50):
        earlier.count_own_steps(1)
    resumed = pacer_of(ratio=1.0, learning_starts=1, lead_steps=10)
    resumed.attach(inserted=48, size=48)  # the last two were incomplete
    resumed.restart(earlier.env_steps, earlier.credit)
    resumed.catch_up(earlier.table_count, inserted=48, size=48)
    assert (resumed.env_steps, resumed.credit) == (50, 50.0)
    resumed.observe_inserted(51)
    assert (resumed.env_steps, resumed.credit) == (53, 53.0)


def test_a_resumed_run_goes_on_counting() -> None:
    pacer = pacer_of(ratio=1.0, learning_starts=10, lead_steps=10)
    pacer.attach(inserted=0, size=20)
    pacer.restart(env_steps=700, credit=2.5)
    assert pacer.env_steps == 700
    pacer.count_own_steps(1)
    assert pacer.env_steps == 701
    assert learn_all(pacer) == 3


def test_rows_that_close_an_episode_are_no_steps_and_do_not_turn_steps_back() -> None:
    pacer = pacer_of(ratio=1.0, learning_starts=1, lead_steps=10)
    pacer.observe_inserted(12)
    for _ in range(3):
        pacer.count_closing_row()
    pacer.observe_inserted(13)
    assert pacer.env_steps == 12  # the last observation showed that 10 of 13 rows are steps
    pacer.observe_inserted(20)
    assert (pacer.env_steps, pacer.table_count) == (17, (20, 20))
    assert learn_all(pacer) == 17


def test_rows_that_close_an_episode_are_estimated_among_rows_that_came_after_the_checkpoint() -> None:
    earlier = pacer_of(ratio=1.0, learning_starts=1, lead_steps=10)
    for _ in range(40):
        earlier.count_own_steps(1)
    resumed = pacer_of(ratio=1.0, learning_starts=1, lead_steps=10)
    resumed.attach(inserted=60, size=60)
    resumed.restart(earlier.env_steps, earlier.credit)
    resumed.catch_up(earlier.table_count, inserted=60, size=60, closing_share=0.1)
    assert (resumed.env_steps, resumed.credit) == (58, 58.0)
    assert resumed.table_count == (60, 60)


def test_learning_waits_until_something_can_be_drawn_and_actors_go_on_meanwhile() -> None:
    pacer = pacer_of(ratio=1.0, learning_starts=3, lead_steps=1)
    pacer.can_draw = False
    pacer.observe_inserted(20)
    assert pacer.has_rows
    assert not pacer.owes_update
    assert may_act(pacer, 20)
    pacer.can_draw = True
    assert learn_all(pacer) == 18
