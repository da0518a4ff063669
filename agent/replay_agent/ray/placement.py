"""Waits until Ray has placed actors. If Ray cannot, the error names the resource that is short."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import ray

START_TIMEOUT_S: Final = 300.0
"""Time limit for processes to start on nodes that have room for them."""
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


def wait_until_placed(refs: Sequence[Any], what: str, each: Mapping[str, float], timeout_s: float) -> None:
    """Wait until actors have answered their first call.

    Args:
        refs: one pending call per actor.
        what: name for the actors in the message.
        each: resources that each actor reserves.
        timeout_s: time limit in seconds.

    Raises:
        PlacementError: some actors did not answer in time.
    """
    _, waiting = ray.wait(list(refs), num_returns=len(refs), timeout=timeout_s)
    if waiting and shortage(each):
        raise PlacementError(not_placed(len(waiting), len(refs), what, each, timeout_s))
    # There is room for these actors, so their processes are starting, which takes long on a busy machine.
    _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=START_TIMEOUT_S) if waiting else ([], [])
    if waiting:
        raise PlacementError(not_placed(len(waiting), len(refs), what, each, timeout_s + START_TIMEOUT_S))


def shortage(each: Mapping[str, float]) -> list[str]:
    """Return the resources of which one actor needs more than is free in the whole cluster."""
    free = ray.available_resources()
    return [name for name, amount in each.items() if free.get(name, 0) < amount]


def not_placed(waiting: int, count: int, what: str, each: Mapping[str, float], timeout_s: float) -> str:
    """Return a message that says how many actors were not placed, and which resource is short, if any."""
    there, free = ray.cluster_resources(), ray.available_resources()
    short = shortage(each)
    figures = ", ".join(
        f"{amount:g} {name} ({free.get(name, 0):g} of {there.get(name, 0):g} free)" for name, amount in each.items()
    )
    reason = f"short of {', '.join(short)}" if short else "no single node has enough, or their processes do not start"
    return f"{waiting} of {count} {what} were not placed within {timeout_s:.0f} s: {reason}; each needs {figures}"
