"""Simulates a server whose first start compiles kernels: logs the same lines, and then reports that it is ready.

`test_local_server` runs it instead of `python -m replay_server`.
"""

from __future__ import annotations

import logging

from replay_client.local_server import READY_PREFIX
from replay_server.process.warming import _Progress

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s  %(message)s")
    progress = _Progress()
    progress.say()
    progress.end()
    logging.info("something else")
    print(f"{READY_PREFIX}127.0.0.1:1", flush=True)
