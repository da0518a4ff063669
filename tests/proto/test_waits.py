"""The sentence that says who waits for what."""

from __future__ import annotations

import pytest
from replay_proto.waits import wait_sentence


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        (("rows", 1, 3120, 10_000, 0.4, 4.2), "1 learner waits for rows: 3,120 of 10,000, about 4 s"),
        (("rows", 2, 0, 1, 0.4, 0.001), "2 learners wait for rows: 0 of 1, less than 1 s"),
        (
            ("samples", 1, 5, 64, 35.0, None),
            "1 learner waits for inserts: 5 of 64 samples allowed, no inserts in the last 10 s (35 s so far)",
        ),
        (
            ("inserts", 3, 4000, 4096, 150.0, 90.0),
            "3 writers wait for draws: 4,000 of 4,096 samples drawn, about 2 min (2 min so far)",
        ),
        (
            ("room", 1, 5, 8, 100_000.0, None),
            "1 writer waits for room: 5 of 8 rows, no draws in the last 10 s (1 d so far)",
        ),
        (("rows", 1, 0, 9, 0.0, 7300.0), "1 learner waits for rows: 0 of 9, about 2 h"),
        (("luck", 2, 0, 9, 0.0, None), "2 callers wait for luck: 0 of 9, no progress in the last 10 s"),
    ],
)
def test_a_wait_in_words(facts: tuple[str, int, int, int, float, float | None], sentence: str) -> None:
    assert wait_sentence(*facts) == sentence
