"""A replay server that the trainer runs in a child process."""

from __future__ import annotations

import logging
import re
import select
import time
from collections.abc import Sequence
from pathlib import Path

from replay_agent.processes.child_process import log_tail, start_module, stop
from replay_agent.processes.own_access import OwnAccess

log = logging.getLogger(__name__)

READY_PREFIX = "replay-server listening on "
# A first start compiles the server's kernels; later ones load them from a cache.
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 15.0
# Interval between checks of the server's log for startup progress.
LOOK_S = 0.5
_PROGRESS = re.compile(r"(?:compiling|kernels compiled).*")


class EmbeddedServerError(RuntimeError):
    """The server did not start, or died."""


class EmbeddedServer:
    """Runs ``replay-server`` on a free port of the loopback interface for as long as this process lives.

    Other users of the machine can reach the port, so the server requires a token.
    """

    def __init__(
        self,
        log_path: Path,
        access: OwnAccess,
        *,
        data_dir: Path | None = None,
        keep_open: Sequence[int] = (),
    ) -> None:
        """Start the server and wait until it is ready to serve.

        Args:
            log_path: file for the server's log.
            access: the token that the server requires.
            data_dir: directory for the tables; None: tables are kept in memory.
            keep_open: file descriptors that the server inherits.

        Raises:
            EmbeddedServerError: the server did not become ready; the message ends with the last lines of its log.
        """
        self._log_path = log_path
        tables = [] if data_dir is None else ["--data-dir", str(data_dir)]
        already_logged = log_path.stat().st_size if log_path.exists() else 0
        self._process = start_module(
            "replay_server",
            [
                *("--host", "127.0.0.1", "--port", "0"),
                *("--tokens", str(access.tokens_file), "--exit-with-parent", *tables),
            ],
            log_path,
            pipe_output=True,
            keep_open=keep_open,
        )
        try:
            self.address = self._wait_for_address(already_logged)
        except BaseException:
            self.close()
            raise

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    def describe_end(self) -> str:
        """Describe how the server died."""
        return (
            f"the embedded replay server ended with status {self._process.poll()}; "
            f"the end of {self._log_path}:\n{log_tail(self._log_path)}"
        )

    def close(self) -> None:
        """Stop the server."""
        stop(self._process, STOP_TIMEOUT_S)

    def _wait_for_address(self, already_logged: int) -> str:
        output = self._process.stdout
        assert output is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        with self._log_path.open(errors="replace") as server_log:
            server_log.seek(already_logged)
            is_ready = False
            while not is_ready:
                if time.monotonic() > deadline:
                    raise EmbeddedServerError(
                        f"the embedded replay server was not ready after {START_TIMEOUT_S:.0f} s; see {self._log_path}"
                    )
                is_ready = bool(select.select([output], [], [], LOOK_S)[0])
                _relay_progress(server_log.readlines())
        line = output.readline().strip()
        if not line.startswith(READY_PREFIX):
            stop(self._process, STOP_TIMEOUT_S)
            raise EmbeddedServerError(
                f"expected {READY_PREFIX!r} from the embedded replay server, got {line!r}; {self.describe_end()}"
            )
        return line.removeprefix(READY_PREFIX)


def _relay_progress(lines: Sequence[str]) -> None:
    """Log the server's startup progress; the first start compiles kernels for several seconds."""
    for line in lines:
        if found := _PROGRESS.search(line):
            log.info("replay server: %s", found[0])
