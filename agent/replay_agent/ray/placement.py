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

    def __init__(self, count: int, what: str, each: Mapping[str, float], timeout_s: float) -> None:
        """Start the time.

        Args:
            count: number of actors.
            what: name for the actors in messages.
            each: resources that each actor reserves.
            timeout_s: seconds to wait for free resources.
        """
        self._count, self._what, self._each, self._timeout_s = count, what, each, timeout_s
        self._began_at = time.monotonic()
        self._is_reported = False

    def check(self, waiting: int) -> None:
        """Log a warning, once, or raise if actors have waited for too long.

        Args:
            waiting: number of actors that Ray has not placed yet.

        Raises:
            PlacementError: the cluster is short of a resource, or `START_TIMEOUT_S` has passed since the warning.
        """
        waited_s = time.monotonic() - self._began_at
        if not waiting or waited_s < self._timeout_s:
            return
        if shortage(self._each):
            raise PlacementError(self._report(waiting, self._timeout_s))
        if waited_s >= self._timeout_s + START_TIMEOUT_S:
            raise PlacementError(self._report(waiting, self._timeout_s + START_TIMEOUT_S))
        if not self._is_reported:
            log.warning("%s; still waiting", self._report(waiting, self._timeout_s))
            self._is_reported = True

    def _report(self, waiting: int, timeout_s: float) -> str:
        """Say how many actors were not placed, and which resource is short, if any."""
        there, free = ray.cluster_resources(), ray.available_resources()
        short = shortage(self._each)
        figures = ", ".join(
            f"{amount:g} {name} ({free.get(name, 0):g} of {there.get(name, 0):g} free)"
            for name, amount in self._each.items()
        )
        reason = (
            f"short of {', '.join(short)}" if short else "no single node has enough, or their processes start slowly"
        )
        late = f"{waiting} of {self._count} {self._what} were not placed within {timeout_s:g} s"
        return f"{late}: {reason}; each needs {figures}"


def wait_until_placed(refs: Sequence[Any], what: str, each: Mapping[str, float], timeout_s: float) -> None:
    """Wait until actors have answered their first call.

    Args:
        refs: one pending call per actor.
        what: name for the actors in messages.
        each: resources that each actor reserves.
        timeout_s: seconds to wait for free resources.

    Raises:
        PlacementError: some actors did not answer in time.
    """
    placement = Placement(len(refs), what, each, timeout_s)
    waiting = list(refs)
    while waiting:
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_POLL_S)
        placement.check(len(waiting))


def shortage(each: Mapping[str, float]) -> list[str]:
    """Return the resources of which one actor needs more than is free in the whole cluster."""
    free = ray.available_resources()
    return [name for name, amount in each.items() if free.get(name, 0) < amount]
