"""Programs that insert and learn in separate processes, and report what they did."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from tests.support.caller import Caller, LearnStream, WriteStream, make_draw, make_update

INSERT_ROWS = 17
VALUES_PER_WRITER = 10**9


@dataclass
class Inserted:
    """Record of an inserting process."""

    rows: int
    first_keys: list[int] = field(default_factory=list)
    """First key of each insert."""


@dataclass
class Learned:
    """Record of a learning process."""

    sampled: int = 0
    updated: int = 0
    stale: int = 0
    values: set[int] = field(default_factory=set)
    """Values of the rows that were drawn."""


def insert_for(address: str, table_name: str, writer: int, duration_s: float, least_rows: int = 0) -> Inserted:
    """Insert numbered rows over a writer's stream, for some time and at least a minimum count."""
    deadline = time.monotonic() + duration_s
    with Caller(address) as caller:
        stream = WriteStream(caller.table(table_name), bytes([writer]) * 16)
        done, sequence = Inserted(0), 0
        while time.monotonic() < deadline or done.rows < least_rows:
            sequence += 1
            values = writer * VALUES_PER_WRITER + done.rows + np.arange(INSERT_ROWS)
            keys = stream.write(values, sequence)
            assert (np.diff(keys) == 1).all()
            done.first_keys.append(int(keys[0]))
            done.rows += INSERT_ROWS
        stream.close()
        return done


def learn_for(
    address: str, data_path: str, table_name: str, learner: int, duration_s: float, least_rows: int = 0
) -> Learned:
    """Draw batches and set priorities for some time and at least a minimum count of rows.

    Every row must be intact and match its key.
    """
    deadline = time.monotonic() + duration_s
    random = np.random.default_rng(learner)
    with Caller(address, data_path) as caller:
        table = caller.table(table_name)
        stream, done, update = LearnStream(table), Learned(), None
        while time.monotonic() < deadline or done.sampled < least_rows:
            # Occasionally use nearly the maximum number of rows per call.
            batch_size = 16_000 if done.sampled % 7 == 0 else 61
            answer, batches = stream.ask(update=update, draw=make_draw(batch_size, beta=0.5, wait_s=30.0), batches=2)
            done.updated += answer.update.updated
            done.stale += answer.update.stale
            keys = np.concatenate([batch.keys for batch in batches])
            values = np.concatenate([batch.values for batch in batches])
            assert len(dict(zip(keys.tolist(), values.tolist(), strict=True))) == len(set(keys.tolist()))
            done.sampled += len(keys)
            done.values |= set(values.tolist())
            chosen = random.choice(keys, 50)
            update = make_update(chosen, random.exponential(size=50))
        stream.close()
        return done
