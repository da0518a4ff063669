"""Processes beside the tests' own: forked from one that has loaded what they need, and no gRPC that runs."""

from __future__ import annotations

import multiprocessing
import os

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "tests.attacks.bystander",
        *(f"tests.attacks.{name}" for name in ("strangers", "small_rights", "learner", "neighbours")),
    ]
)


_ATTACKERS_PROCESSORS = "ATTACKERS_PROCESSORS"


def leave_processors_to_attackers() -> None:
    """Keep this process, and those that it starts, to half of the processors; attackers take the others."""
    every = sorted(os.sched_getaffinity(0))
    ours, theirs = every[: (len(every) + 1) // 2], every[(len(every) + 1) // 2 :]
    if theirs:
        os.sched_setaffinity(0, ours)
        os.environ[_ATTACKERS_PROCESSORS] = " ".join(map(str, theirs))


def keep_to_attackers_processors() -> None:
    """Take no time from the server and its callers: an attacker that has a machine of its own does not either."""
    if theirs := os.environ.get(_ATTACKERS_PROCESSORS):
        os.sched_setaffinity(0, map(int, theirs.split()))
