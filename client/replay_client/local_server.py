"""Starts a replay server for this program alone, in a separate process.

    with LocalServer() as server:
        client = server.client()

    client = LocalServer().client()         # in a notebook: the server runs as long as the client is in use

The server stops when `close` is called, when the `LocalServer` and all clients that it created have been freed, or when
this process ends, even by SIGKILL. It listens on a free port of the loopback interface. Other users of the machine
can reach that port, so the server requires a random token. Clients from `LocalServer.client` send it.
"""

from __future__ import annotations

import logging
import os
import re
import select
import subprocess
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from replay_proto.access.own_token import new_token, token_entry
from replay_proto.child_process import log_tail, start_module, stop

from replay_client._extras import check_extra
from replay_client._transport.long_waits import LongWait
from replay_client.errors import LocalServerError
from replay_client.sync.client import ReplayClient

log = logging.getLogger(__name__)

NEEDED: Final = (
    "cyclopts",
    "grpc_health",
    "grpc_reflection",
    "ml_dtypes",
    "numba",
    "prometheus_client",
    "psutil",
    "pydantic",
    "starlette",
    "uvicorn",
    "uvloop",
)
"""Modules of the extra ``server``."""
READY_PREFIX: Final = "replay-server listening on "
START_TIMEOUT_S: Final = 300.0
"""Time limit for a start. The first start compiles the server's kernels; later ones load them from a cache."""
STOP_TIMEOUT_S: Final = 15.0
_LOOK_S: Final = 0.5
"""Interval between checks of the server's log for startup progress."""
_PROGRESS: Final = re.compile(r"(?:compiling|kernels compiled).*")
_VARIABLES: Final = "REPLAY_SERVER_"


class LocalServer:
    """See the module."""

    def __init__(
        self,
        data_dir: str | Path | None = None,
        *,
        token: str | None = None,
        log_path: str | Path | None = None,
        keep_open: Sequence[int] = (),
        **settings: object,
    ) -> None:
        """Start a server, and wait until it is ready.

        This takes about a second, or 20 seconds at the first start of a version.

        Args:
            data_dir: directory that keeps the tables; None: a temporary one in memory, removed when the server ends.
            token: the token that clients must send; None: a random one.
            log_path: file that the server appends its log to; None: the log is discarded, but errors quote its end.
            keep_open: file descriptors that the server inherits.
            **settings: further settings of `replay-server`, such as ``max_tables=10``; see docs/operations/server.md.
                Variables ``REPLAY_SERVER_*`` do not apply.

        Raises:
            MissingExtraError: the extra ``server`` is not installed.
            LocalServerError: the server did not become ready; the message ends with the last lines of its log.
            OSError: the log cannot be written.
        """
        check_extra("server", *NEEDED)
        self.token: Final = token or new_token()
        """The token that clients must send."""
        self._unnamed: list[IO[str]] = []
        tokens_path = self._unnamed_file(token_entry(self.token))
        self._log_path = self._unnamed_file() if log_path is None else Path(log_path)
        already_logged = self._log_path.stat().st_size if self._log_path.exists() else 0
        self._process = start_module(
            "replay_server",
            [
                *("--host", "127.0.0.1", "--port", "0", "--tokens", str(tokens_path), "--exit-with-parent"),
                *([] if data_dir is None else [f"--data-dir={data_dir}"]),
                *_flags(settings),
            ],
            self._log_path,
            pipe_output=True,
            environment=_environment(),
            keep_open=keep_open,
        )
        self._end = weakref.finalize(self, _end, self._process, os.getpid())
        try:
            self.address: Final = self._wait_for_address(already_logged)
            """The server's address."""
        except BaseException:
            self.close()
            raise

    @property
    def is_running(self) -> bool:
        """Whether the server is running."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    def client(self, **options: Any) -> ReplayClient:
        """Create a client of the server, with options of `ReplayClient` such as ``timeout_s``.

        The server runs at least until the client and all of its tables, writers and samplers have been freed.

        Raises:
            InvalidArgumentError: for an invalid option.
        """
        client = ReplayClient(self.address, token=self.token, **options)
        client.keep_alive(self)
        return client

    def describe_end(self) -> str:
        """Describe how the server died."""
        return (
            f"the replay server of this program ended with status {self._process.poll()}; "
            f"the end of its log:\n{log_tail(self._log_path)}"
        )

    def close(self) -> None:
        """Stop the server. Idempotent; does nothing in a forked child."""
        self._end()

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LocalServer at {self.address}, process {self.pid}>"

    def _unnamed_file(self, content: str = "") -> Path:
        """Create a file in memory, which disappears when this process ends for any reason.

        Returns:
            A path under which processes of the same user can open the file.
        """
        descriptor = os.memfd_create("replay", os.MFD_CLOEXEC)
        os.fchmod(descriptor, 0o600)  # the server refuses a file with tokens that others can read
        file = os.fdopen(descriptor, "w")  # open as long as this object
        file.write(content)
        file.flush()
        self._unnamed.append(file)
        return Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")

    def _wait_for_address(self, already_logged: int) -> str:
        wait = LongWait("the start of a local server", self._explain_start)
        with wait:
            return self._awaited_address(already_logged, wait)

    def _explain_start(self, waited_s: float) -> str:
        last = log_tail(self._log_path).strip().rpartition("\n")[2]
        return f"waited {waited_s:g} of {START_TIMEOUT_S:g} s; the last line of its log: {last or 'none yet'}"

    def _awaited_address(self, already_logged: int, wait: LongWait) -> str:
        output = self._process.stdout
        assert output is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        with self._log_path.open(errors="replace") as server_log:
            server_log.seek(already_logged)
            is_ready = False
            while not is_ready:
                if time.monotonic() > deadline:
                    raise LocalServerError(
                        f"the replay server was not ready after {START_TIMEOUT_S:.0f} s; "
                        f"the end of its log:\n{log_tail(self._log_path)}"
                    )
                is_ready = bool(select.select([output], [], [], _LOOK_S)[0])
                if _relay_progress(server_log.readlines()):
                    wait.heard()
        line = output.readline().strip()
        if not line.startswith(READY_PREFIX):
            self.close()
            raise LocalServerError(
                f"expected {READY_PREFIX!r} of the replay server, got {line!r}; {self.describe_end()}"
            )
        return line.removeprefix(READY_PREFIX)


def _flags(settings: Mapping[str, object]) -> Iterator[str]:
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        else:
            yield f"--{flag}={value}"


def _environment() -> dict[str, str]:
    """Return this process's variables without ``REPLAY_SERVER_*``, and turn off imports from the current directory."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_VARIABLES)}
    return {**kept, "PYTHONSAFEPATH": "1"}


def _end(process: subprocess.Popen[str], owner: int) -> None:
    if os.getpid() == owner:
        stop(process, STOP_TIMEOUT_S)


def _relay_progress(lines: Sequence[str]) -> bool:
    """Log the progress of compilation at the first start as warnings, which appear even without a logging config.

    Returns:
        Whether there was any.
    """
    found = [match[0] for match in map(_PROGRESS.search, lines) if match]
    for line in found:
        log.warning("replay server: %s", line)
    return bool(found)
