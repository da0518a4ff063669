"""Helper processes, forked from a process that has loaded their modules but has not started gRPC."""

from __future__ import annotations

import multiprocessing
import os

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "tools.attacks.bystander",
        *(f"tools.attacks.{name}" for name in ("strangers", "small_rights", "neighbours")),
    ]
)


_ATTACKERS_PROCESSORS = "ATTACKERS_PROCESSORS"


def leave_processors_to_attackers() -> None:
    """Restrict this process and its children to half of the processors; attackers use the others."""
    every = sorted(os.sched_getaffinity(0))
    ours, theirs = every[: (len(every) + 1) // 2], every[(len(every) + 1) // 2 :]
    if theirs:
        os.sched_setaffinity(0, ours)
        os.environ[_ATTACKERS_PROCESSORS] = " ".join(map(str, theirs))


def keep_to_attackers_processors() -> None:
    """Restrict an attacker to its own processors, as if it had a separate machine."""
    if theirs := os.environ.get(_ATTACKERS_PROCESSORS):
        os.sched_setaffinity(0, map(int, theirs.split()))
