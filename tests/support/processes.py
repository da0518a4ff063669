"""Processes for functions of the tests, forked from one that has loaded what they need."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext


def loaded_processes() -> ForkServerContext:
    """Where such processes are made. Nothing of gRPC is begun before they are forked."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.actors", "replay_client"])
    return context
