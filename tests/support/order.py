"""The order of tests for the workers of pytest-xdist, which begin with equal shares and then steal from each other.

A worker steals from the end of another's share. So slow tests lie in the first half of each share: the last tests of a
run are short ones, and all workers end at about the same time. Quick tests, most of which wait, lie between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice

import pytest


def in_shares(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return the tests in order of the shares of so many workers, which `WorkStealingScheduling` gives them."""
    slow: list[list[pytest.Item]] = [[] for _ in range(workers)]
    marked = (item for item in items if item.get_closest_marker("slow"))
    # The cases of one function stay together, because they share what they need.
    for number, (_, cases) in enumerate(groupby(marked, key=lambda item: item.nodeid.partition("[")[0])):
        slow[number % workers] += cases
    others = (item for item in items if not item.get_closest_marker("slow"))
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        share = (len(items) - len(ordered)) // (workers - worker)
        ordered += _mixed(slow[worker], list(islice(others, max(0, share - len(slow[worker])))))
    return ordered


def _mixed(slow: list[pytest.Item], others: list[pytest.Item]) -> Iterator[pytest.Item]:
    step = len(others) // (2 * len(slow)) if slow else 0
    for number, item in enumerate(slow):
        yield item
        yield from others[number * step : (number + 1) * step]
    yield from others[len(slow) * step :]
