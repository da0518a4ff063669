"""Processes beside the tests' own: forked from one that has loaded what they need, and no gRPC that runs."""

from __future__ import annotations

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "tests.attacks.bystander",
        *(f"tests.attacks.{name}" for name in ("strangers", "small_rights", "learner", "neighbours")),
    ]
)
