"""Samples that learners charge to a rate limiter, or have refunded, with numbers of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from replay_proto.layout import HEADER_FILE
from replay_proto.v1 import replay_pb2
from replay_server.storage.header import FIRST_STATE_WORD
from replay_server.storage.ranges import KEYS, RESETTING, SAMPLED

from tests.support.caller import CalledTable, Caller, LearnStream
from tests.support.refusals import refused
from tests.support.server_process import ServerProcess

WIDE = replay_pb2.RateLimiter(min_size=1, samples_per_insert=1.0, min_diff=-(2.0**200), max_diff=2.0**200)
"""Bounds that let through any number of samples."""
ROWS = 10
LARGEST = (1 << 63) - 1


@pytest.fixture
def durable(start_server: Callable[..., ServerProcess], tmp_path: Path) -> ServerProcess:
    """A server with durable tables."""
    return start_server("--data-dir", str(tmp_path / "data"))


@pytest.fixture
def limited(durable: ServerProcess) -> Iterator[CalledTable]:
    """A table with these rows and wide bounds."""
    with Caller(durable.address) as caller:
        table = caller.create("limited", rate_limiter=WIDE)
        table.insert(range(ROWS))
        yield table


def ask(table: CalledTable, **request: object) -> int:
    """Charge or refund on a stream of its own; return the number of charged samples."""
    stream = LearnStream(table)
    try:
        return stream.ask(**request)[0].charged
    finally:
        stream.vanish()


@pytest.mark.parametrize("field", ["charge", "refund"])
@pytest.mark.parametrize("number", [-1, -(1 << 63)])
def test_numbers_below_zero_are_refused(limited: CalledTable, field: str, number: int) -> None:
    before = limited.stats().rate_limiter.sampled
    with refused("INVALID_FIELD", field=field):
        ask(limited, **{field: number})
    assert limited.stats().rate_limiter.sampled == before


@pytest.mark.parametrize("field", ["charge", "refund"])
def test_a_limiter_without_a_ratio_counts_no_charges(durable: ServerProcess, field: str) -> None:
    with Caller(durable.address) as caller:
        table = caller.create(rate_limiter=replay_pb2.RateLimiter(min_size=5))
        with refused("INVALID_FIELD", field=field):
            ask(table, **{field: 1})


@pytest.mark.parametrize(("field", "end"), [("charge", SAMPLED.most), ("refund", SAMPLED.least)])
def test_no_sequence_of_charges_stops_the_next_start_or_empties_the_table(
    durable: ServerProcess, limited: CalledTable, field: str, end: int
) -> None:
    changes = [ask(limited, **{field: number}) for number in (1, 1 << 62, (1 << 62) + 1, LARGEST, LARGEST)]
    assert sum(changes) == end == limited.stats().rate_limiter.sampled
    limited.sample(4)
    durable.kill()
    durable.restart()
    with Caller(durable.address) as caller:
        again = caller.table(limited.name)
        assert again.describe().size == ROWS
        assert abs(again.stats().rate_limiter.sampled) in range(SAMPLED.most - 4, SAMPLED.most + 1)
        again.sample(4)
        assert again.read(range(ROWS)).keys.tolist() == list(range(ROWS))


def test_the_mark_of_a_reset_is_no_count() -> None:
    assert RESETTING not in SAMPLED


def test_a_table_without_keys_left_refuses_inserts(durable: ServerProcess, limited: CalledTable) -> None:
    """Such a count of rows would stop the next start."""
    durable.terminate()
    folder = Path(durable.flags[durable.flags.index("--data-dir") + 1])
    (header,) = folder.glob(f"**/{limited.name}/{HEADER_FILE}")
    words = np.memmap(header, "<i8", "r+")
    words[FIRST_STATE_WORD : FIRST_STATE_WORD + 3] = KEYS.most - 2
    words.flush()
    durable.restart()
    with Caller(durable.address) as caller:
        table = caller.table(limited.name)
        with refused("TOO_LARGE", limit=KEYS.most, got=KEYS.most + 1):
            table.insert(range(3))
        assert table.insert([1, 2])[-1] == KEYS.most - 1
    durable.kill()
    durable.restart()
    with Caller(durable.address) as caller, pytest.raises(grpc.RpcError):
        caller.table(limited.name).insert([1])
