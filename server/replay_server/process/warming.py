"""Compiles or loads every kernel before the server starts serving, so that no call waits for a compilation.

On the first start on a machine, or with a new version, two other processes compile the kernels in parallel, while this
process logs their progress. Then, and on every later start, this process loads the compiled kernels.
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import threading
import time

import numpy as np

from replay_server.backends import BACKENDS, rank, warm_up_backend
from replay_server.errors import StoppedError
from replay_server.kernels import kernel_cache
from replay_server.kernels.compile import KERNELS
from replay_server.storage.power_loss.checksum_kernels import compile_checksums
from replay_server.table.importance import importance_weights
from replay_server.table.items.step_windows import warm_up_windows
from replay_server.table.stratified import stratified_fractions
from replay_server.table.times_sampled import TimesSampled
from replay_server.table.updates import first_unusable, resolve_update

log = logging.getLogger(__name__)

_SHARES = ("rank.warm_up_writing", "_warm_up_the_rest")
"""Functions that compile the kernels, each in its own process. They share no kernels and take about equally long."""
_RANK = rank.RankIndex.name
_LOOK_S = 0.1
_SAY_S = 3.0
_PATIENCE_S = 10.0
"""A wait for another server that takes longer is warned of."""


def warm_up(cancelled: threading.Event | None = None) -> None:
    """Load every kernel; first compile missing ones, logging progress, until ``cancelled`` is set."""
    if not kernel_cache.is_complete(kernel_cache.folder()):
        _compile_beside(cancelled or threading.Event())
    _load()


def _load() -> None:
    """Load all kernels, and compile any that are missing."""
    warm_up_backend(_RANK)
    _warm_up_the_rest()


def _warm_up_the_rest() -> None:
    rank.warm_up_drawing()
    for name in BACKENDS:
        if name != _RANK:
            warm_up_backend(name)
    keys, priorities = np.arange(4, dtype=np.int64), np.ones(4)
    counts = TimesSampled(8)
    counts.appear(len(keys))
    counts.draw(keys)
    counts.disappear(keys)
    first_unusable(priorities, 1.0)
    resolve_update(keys, priorities, 0, len(keys), priorities)
    stratified_fractions(np.random.default_rng(0), len(keys))
    importance_weights(priorities, len(keys), 0.0, 1.0)
    compile_checksums()
    warm_up_windows()


def _compile_beside(cancelled: threading.Event) -> None:
    """Compile in other processes, or wait while another server compiles."""
    folder = kernel_cache.folder()
    progress = _Progress()
    while True:
        with kernel_cache.lock(folder) as is_ours:
            if is_ours:
                if not kernel_cache.is_complete(folder):
                    kernel_cache.remove_unfinished(folder)
                    _compile(progress, cancelled)
                    _load()
                    # Do this before another server takes the lock: it would remove unfinished kernels.
                    kernel_cache.set_complete(folder)
                progress.end()
                return
        progress.say(by_another=True)
        _wait(cancelled)


def _compile(progress: _Progress, cancelled: threading.Event) -> None:
    try:
        helpers = [_start_helper(share) for share in _SHARES]
    except OSError as error:
        log.warning("compiling kernels in one process, cannot start a second one: %s", error)
        return
    try:
        while any(helper.poll() is None for helper in helpers):
            progress.say()
            _wait(cancelled)
    finally:
        for helper in helpers:
            helper.kill()
            helper.wait()
    failed = [helper.returncode for helper in helpers if helper.returncode]
    if failed:
        log.warning("a process compiling kernels exited with %d; continuing without it", failed[0])


def _start_helper(share: str) -> subprocess.Popen[bytes]:
    # Use the same modules and the same folder, which may be a temporary one of this process.
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "NUMBA_CACHE_DIR": str(kernel_cache.folder().parent),
    }
    code = f"from replay_server.process import warming; warming.{share}()"
    return subprocess.Popen([sys.executable, "-P", "-c", code], env=environment, stdin=subprocess.DEVNULL)


def _wait(cancelled: threading.Event) -> None:
    if cancelled.wait(_LOOK_S):
        raise StoppedError("compiling kernels")


class _Progress:
    """Shows the progress of the compilation: one updated line in a terminal, otherwise a log line every few seconds."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._said = -_SAY_S
        self._warn_at = self._began + _PATIENCE_S
        self._terminal = sys.stderr.isatty() and log.isEnabledFor(logging.INFO)
        where = kernel_cache.folder()
        kept = (
            "for this start only, no directory for them is writable: set NUMBA_CACHE_DIR"
            if kernel_cache.is_temporary()
            else f"first start of this version; stored in {where}"
        )
        log.info("compiling %d kernels (%s)", len(KERNELS), kept)

    def say(self, *, by_another: bool = False) -> None:
        now = time.monotonic()
        passed = now - self._began
        if by_another and now >= self._warn_at:
            self._warn_at = math.inf
            log.warning(
                "this start waits for another server, which compiles the kernels in %s; if it makes no progress, stop "
                "it, or set NUMBA_CACHE_DIR to another directory",
                kernel_cache.folder(),
            )
        if not self._terminal and passed - self._said < _SAY_S:
            return
        self._said = passed
        done = min(kernel_cache.kernels_in(kernel_cache.folder()), len(KERNELS))
        line = f"compiling kernels: {done} of {len(KERNELS)} after {passed:.0f} s"
        if by_another:
            line += ", by another server"
        if self._terminal:
            sys.stderr.write(f"\r{line}\x1b[K")
            sys.stderr.flush()
        else:
            log.info("%s", line)

    def end(self) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
        log.info("kernels compiled in %.0f s", time.monotonic() - self._began)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    warm_up()
