"""Waits until Ray has placed actors. If Ray cannot, the error names the resource that is short."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import ray

log = logging.getLogger(__name__)

START_TIMEOUT_S: Final = 300.0
"""Additional time if the cluster has free resources: processes start slowly on a busy machine."""
_POLL_S: Final = 0.5


class PlacementError(RuntimeError):
    """Ray has no room for an actor; the message names the resource that is short."""


def wait_for_room(demand: Mapping[str, float], timeout_s: float) -> None:
    """Wait until the cluster as a whole has these resources, whether or not they are in use.

    Raises:
        PlacementError: the cluster does not have them in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        there = ray.cluster_resources()
        short = [
            f"{amount:g} {name} (the cluster has {there.get(name, 0):g})"
            for name, amount in demand.items()
            if there.get(name, 0) < amount
        ]
        if not short:
            return
        if time.monotonic() >= deadline:
            raise PlacementError(
                f"no room after {timeout_s:.0f} s: expected {', '.join(short)}; add nodes to the cluster"
            )
        time.sleep(_POLL_S)


class Placement:
    """Time limits for actors that Ray was asked to start."""

    def __init__(self, ready: Sequence[Any], what: str, each: Mapping[str, float], timeout_s: float) -> None:
        """Start the time.

        Args:
            ready: a pending call of each actor.
            what: name for the actors in messages.
            each: resources that each actor reserves.
            timeout_s: seconds to wait for free resources.
        """
        self._count, self._what, self._each, self._timeout_s = len(ready), what, each, timeout_s
        self.waiting = list(ready)
        """Those calls that had not ended at the last `check`."""
        self._began_at = time.monotonic()
        self._is_reported = False

    def wait(self) -> None:
        """Wait until all actors have answered their call. The errors are those of `check`."""
        while not self.check(_POLL_S):
            pass

    def check(self, wait_s: float = 0.0) -> bool:
        """Return whether all actors have answered, after up to ``wait_s`` seconds. If they are late, warn once.

        Raises:
            PlacementError: the cluster is short of a resource, or `START_TIMEOUT_S` has passed since the warning.
        """
        if self.waiting:
            _, self.waiting = ray.wait(self.waiting, num_returns=len(self.waiting), timeout=wait_s)
        waited_s = time.monotonic() - self._began_at
        if not self.waiting or waited_s < self._timeout_s:
            return not self.waiting
        there, free = ray.cluster_resources(), ray.available_resources()
        short = [name for name, amount in self._each.items() if free.get(name, 0) < amount]
        is_over = not short and waited_s >= self._timeout_s + START_TIMEOUT_S
        limit_s = self._timeout_s + START_TIMEOUT_S if is_over else self._timeout_s
        late = f"{len(self.waiting)} of {self._count} {self._what} were not placed within {limit_s:g} s"
        reason = (
            f"short of {', '.join(short)}" if short else "no single node has enough, or their processes start slowly"
        )
        figures = ", ".join(
            f"{amount:g} {name} ({free.get(name, 0):g} of {there.get(name, 0):g} free)"
            for name, amount in self._each.items()
        )
        report = f"{late}: {reason}; each needs {figures}"
        if short or is_over:
            raise PlacementError(report)
        if not self._is_reported:
            log.warning("%s; still waiting", report)
            self._is_reported = True
        return False
