"""Processes for test functions, forked from one that has loaded their modules."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext


def loaded_processes() -> ForkServerContext:
    """The context that creates such processes. gRPC must not be started before the fork."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.actors", "replay_client"])
    return context
