"""The limiter's arithmetic for batches, compared with Reverb's for single rows."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from replay_proto.errors import FieldError
from replay_proto.rate_limit import ErrorBuffer, RateLimit
from replay_server.storage.ranges import KEYS
from replay_server.table.gates import Counters, difference, insert_allowed, samples_allowed, samples_needed

from tests.support.examples import examples

COUNTS = st.integers(1, 40)


class OneByOne:
    """Reverb's limiter, transcribed literally: every row is one item, and is checked separately."""

    def __init__(self, limit: RateLimit, capacity: int) -> None:
        self.limit = limit
        self.capacity = capacity
        self.inserts = self.samples = self.deletes = 0

    @property
    def ratio(self) -> float:
        return 1.0 if self.limit.samples_per_insert is None else self.limit.samples_per_insert

    def can_sample(self) -> bool:
        if self.inserts - self.deletes < self.limit.min_size:
            return False
        return self.inserts * self.ratio - self.samples - 1 >= self.limit.min_diff

    def can_insert(self) -> bool:
        if self.inserts + 1 - self.deletes <= self.limit.min_size:
            return True
        return (1 + self.inserts) * self.ratio - self.samples <= self.limit.max_diff

    def insert(self) -> None:
        self.inserts += 1
        if self.inserts - self.deletes > self.capacity:
            self.deletes += 1

    def could_insert(self, rows: int) -> bool:
        """Whether all rows would be admitted, one after the other."""
        ahead = OneByOne(self.limit, self.capacity)
        ahead.inserts, ahead.samples, ahead.deletes = self.inserts, self.samples, self.deletes
        for _ in range(rows):
            if not ahead.can_insert():
                return False
            ahead.inserts += 1  # rows evicted meanwhile do not admit more rows
        return True


class Limiting(RuleBasedStateMachine):
    """Inserts, draws and resets, as far as they are allowed."""

    @initialize(
        min_size=st.integers(1, 30),
        more=st.integers(0, 50),
        ratio=st.none() | st.sampled_from([0.1, 0.25, 0.3, 1.0, 1.7, 8.0]),
        lower=st.floats(-100, 100),
        width=st.floats(1.0, 8.0),
        is_whole=st.booleans(),
    )
    def make(
        self, min_size: int, more: int, ratio: float | None, lower: float, width: float, *, is_whole: bool
    ) -> None:
        """With whole bounds, differences often reach them exactly."""
        if ratio is None:
            self.limit = RateLimit(min_size)
        else:
            lower = min(lower, ratio * min_size)
            upper = lower + 2.001 * width * max(1.0, ratio)
            lower, upper = (float(math.floor(lower)), float(math.ceil(upper))) if is_whole else (lower, upper)
            self.limit = RateLimit(min_size, ratio, lower, upper)
        self.capacity = min_size + more
        self.oracle = OneByOne(self.limit, self.capacity)

    @property
    def counters(self) -> Counters:
        oracle = self.oracle
        return Counters(oracle.inserts - oracle.deletes, oracle.inserts, oracle.samples)

    @rule(rows=COUNTS)
    def insert(self, rows: int) -> None:
        allowed = insert_allowed(self.limit, self.counters, rows)
        size, largest = self.counters.size, self.limit.largest_insert
        leads_beyond = size < self.limit.min_size and largest is not None and rows <= largest
        assert allowed == (self.oracle.could_insert(rows) or leads_beyond)
        if allowed:
            for _ in range(rows):
                self.oracle.insert()

    @rule(wanted=COUNTS)
    def draw(self, wanted: int) -> None:
        granted = samples_allowed(self.limit, self.counters, wanted)
        assert 0 <= granted <= wanted
        for _ in range(granted):
            assert self.oracle.can_sample()
            self.oracle.samples += 1
        assert granted == wanted or not self.oracle.can_sample()

    @rule(count=COUNTS)
    def go_up_to_the_bounds(self, count: int) -> None:
        """Row by row, so that nothing is passed over."""
        for step in (self.insert, self.draw):
            for _ in range(count):
                step(1)

    @rule()
    def reset(self) -> None:
        self.oracle = OneByOne(self.limit, self.capacity)

    @rule()
    def the_largest_insert_is_allowed_once_enough_was_drawn(self) -> None:
        largest = self.limit.largest_insert
        assume(largest is not None)
        assert largest is not None
        while self.oracle.can_sample():
            self.oracle.samples += 1
        assert insert_allowed(self.limit, self.counters, largest)

    @invariant()
    def one_of_the_two_is_always_allowed(self) -> None:
        assert insert_allowed(self.limit, self.counters, 1) or samples_allowed(self.limit, self.counters, 1)

    @invariant()
    def the_difference_is_within_its_bounds(self) -> None:
        # Up to min_size rows are admitted whatever the difference.
        counters = self.counters
        if counters.sampled:
            assert difference(self.limit, counters) >= self.limit.min_diff
        if self.limit.samples_per_insert is not None and counters.size > self.limit.min_size:
            assert self.limit.largest_insert is not None
            beyond = self.limit.min_size - 1 + self.limit.largest_insert
            assert difference(self.limit, counters) <= max(self.limit.max_diff, self.limit.samples_per_insert * beyond)


TestLimiting = Limiting.TestCase
TestLimiting.settings = settings(max_examples=examples(100), stateful_step_count=40)


MAX_KEY = KEYS.most
COUNTERS = st.sampled_from([0, 1, 1000, MAX_KEY // 2, MAX_KEY]) | st.integers(0, MAX_KEY)
NUMBERS = (
    st.floats()
    | st.sampled_from([10**400, -(10**400), 8e307, 5e-324, 2.0**100, 2.0**-100, 2.0**200, -(2.0**200), 1, 1.0])
    | st.floats(0.1, 10.0)
)
BUFFERS = NUMBERS | st.tuples(NUMBERS, NUMBERS)


@settings(max_examples=examples(500))
@example(8e307, 1, 1.7e308, 0, 0, 0, 1)
@example(2.0**-100, 1, (-(2.0**200), 2.0**200), MAX_KEY, MAX_KEY, 0, MAX_KEY)
@example(2.0**100, MAX_KEY, (-(2.0**200), 2.0**200), MAX_KEY, MAX_KEY, MAX_KEY, MAX_KEY)
@given(NUMBERS, st.integers(1, MAX_KEY) | NUMBERS, BUFFERS, COUNTERS, COUNTERS, COUNTERS, COUNTERS.filter(bool))
def test_whatever_is_accepted_never_overflows(
    ratio: float,
    min_size: float,
    buffer: ErrorBuffer,
    size: int,
    inserted: int,
    sampled: int,
    rows: int,
) -> None:
    try:
        limit = RateLimit.of(min_size, ratio, buffer)
    except FieldError:
        return
    assert limit is not None
    counters = Counters(min(size, inserted), inserted, sampled)
    assert math.isfinite(difference(limit, counters))
    assert 0 <= samples_allowed(limit, counters, rows) <= rows
    if not insert_allowed(limit, counters, rows):
        assert samples_needed(limit, counters, rows) > sampled
    assert limit.largest_insert is not None
    assert limit.largest_insert >= 1
    assert RateLimit.from_proto(limit.to_proto()) == limit


@pytest.mark.parametrize("ratio", [2.0**-100, 1.0, 2.0**100])
def test_the_widest_limits_are_accepted(ratio: float) -> None:
    limit = RateLimit(1, ratio, -(2.0**200), 2.0**200)
    counters = Counters(MAX_KEY, MAX_KEY, 0)
    assert insert_allowed(limit, counters, 1000)
    assert samples_allowed(limit, counters, 1000) == 1000


def test_an_error_buffer_is_centred_on_what_min_size_rows_allow() -> None:
    assert RateLimit.of(100, 4.0, 50) == RateLimit(100, 4.0, 350.0, 450.0)
    assert RateLimit.of(100, 4.0, (10.0, 500.0)) == RateLimit(100, 4.0, 10.0, 500.0)
    assert RateLimit.of(100, None, None) == RateLimit(100)
    assert RateLimit.of(None, None, None) is None


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ((0, None, None), "min_size"),
        ((1.5, None, None), "min_size"),
        ((1, 0.0, 5.0), "samples_per_insert"),
        ((1, -1.0, 5.0), "samples_per_insert"),
        ((1, float("nan"), 5.0), "samples_per_insert"),
        ((1, 8e307, 1.7e308), "samples_per_insert"),
        ((1, 2.1**100, 1e100), "samples_per_insert"),
        ((1, 2.1**-100, 5.0), "samples_per_insert"),
        ((1, 10**400, 5.0), "samples_per_insert"),
        ((1, 1.0, 2.1**200), "error_buffer"),
        ((1, 1.0, (-1.7e308, 1.7e308)), "error_buffer"),
        ((10**400, None, None), "min_size"),
        ((1, 1.0, None), "error_buffer"),
        ((1, None, 5.0), "error_buffer"),
        ((1, 1.0, 0.9), "error_buffer"),
        ((1, 8.0, 7.9), "error_buffer"),
        ((1, 1.0, (0.0, float("inf"))), "error_buffer"),
        ((10, 1.0, (10.1, 100.0)), "error_buffer"),
    ],
)
def test_what_would_block_calls_for_good_is_refused(
    given: tuple[float | None, float | None, float | tuple[float, float] | None], field: str
) -> None:
    with pytest.raises(FieldError) as error:
        RateLimit.of(*given)
    assert error.value.field == field
