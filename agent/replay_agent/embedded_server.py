"""A replay server of the trainer's own, in a second process."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from replay_agent.child_process import log_tail, start_module, stop

READY_PREFIX = "replay-server listening on "
# A first start compiles the server's kernels; later ones load them from a cache.
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 15.0


class EmbeddedServerError(RuntimeError):
    """The server did not start, or it is gone."""


class EmbeddedServer:
    """Runs ``replay-server`` on a free port of the loopback interface for as long as this process lives."""

    def __init__(
        self,
        log_path: Path,
        *,
        data_dir: Path | None = None,
        keep_open: Sequence[int] = (),
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        """Start the server and wait until it is ready to serve.

        Args:
            log_path: file for its log.
            data_dir: directory that its tables are kept in; None: in memory, for as long as it lives.
            keep_open: file descriptors that it holds until it ends.
            start_timeout_s: how long to wait, in seconds.

        Raises:
            EmbeddedServerError: it did not get ready; the message ends with its log.
        """
        self._log_path = log_path
        tables = [] if data_dir is None else ["--data-dir", str(data_dir)]
        self._process = start_module(
            "replay_server",
            ["--host", "127.0.0.1", "--port", "0", "--exit-with-parent", *tables],
            log_path,
            pipe_output=True,
            keep_open=keep_open,
        )
        try:
            self.address = self._wait_for_address(start_timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def describe_end(self) -> str:
        """What is known of a server that is gone."""
        return (
            f"the embedded replay server ended with status {self._process.poll()}; "
            f"the end of {self._log_path}:\n{log_tail(self._log_path)}"
        )

    def close(self) -> None:
        """Stop it."""
        stop(self._process, STOP_TIMEOUT_S)

    def _wait_for_address(self, timeout_s: float) -> str:
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_read_first_line, args=(self._process, lines), daemon=True).start()
        try:
            line = lines.get(timeout=timeout_s).strip()
        except queue.Empty:
            raise EmbeddedServerError(
                f"the embedded replay server was not ready after {timeout_s:.0f} s; see {self._log_path}"
            ) from None
        if not line.startswith(READY_PREFIX):
            stop(self._process, STOP_TIMEOUT_S)
            raise EmbeddedServerError(
                f"expected {READY_PREFIX!r} from the embedded replay server, got {line!r}; {self.describe_end()}"
            )
        return line.removeprefix(READY_PREFIX)


def _read_first_line(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert process.stdout is not None
    lines.put(process.stdout.readline())
