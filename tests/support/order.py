"""The order of tests for the workers of pytest-xdist, which begin with equal shares and then steal from each other.

A worker steals from the end of another's share. So slow tests lie in the first half of each share: the last tests of a
run are short ones, and all workers end at about the same time. Quick tests, most of which wait, lie between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice

import pytest

Tests = list[pytest.Item]


def in_shares(items: Tests, workers: int) -> Tests:
    """Return the tests in order of the shares of so many workers, which `WorkStealingScheduling` gives them."""
    slow: list[list[Tests]] = [[] for _ in range(workers)]
    marked = (item for item in items if item.get_closest_marker("slow"))
    # Those of one module stay together, because they share what it has started.
    for number, (_, of_module) in enumerate(groupby(marked, key=lambda item: item.path)):
        slow[number % workers].append(list(of_module))
    others = (item for item in items if not item.get_closest_marker("slow"))
    ordered: Tests = []
    for worker in range(workers):
        share = (len(items) - len(ordered)) // (workers - worker)
        quick = share - sum(map(len, slow[worker]))
        ordered += _mixed(slow[worker], list(islice(others, max(0, quick))))
    return ordered


def _mixed(slow: list[Tests], others: Tests) -> Iterator[pytest.Item]:
    step = len(others) // (2 * len(slow)) if slow else 0
    for number, of_module in enumerate(slow):
        yield from of_module
        yield from others[number * step : (number + 1) * step]
    yield from others[len(slow) * step :]
