"""Makes one chosen system call of a server fail: builds and controls `failing_calls.c`.

calls = FailingCalls(folder)                        # compiles the library, and loads a server with it
calls.arm(Fault("rename", 3, errno.EIO))            # the third rename from now on fails
process = calls.start(watched, log, "--data-dir", ...)
calls.fired                                         # what failed; empty if there was no such call
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.server_process import server_environment
from tests.support.warm_program import SERVER, ForkedProcess, WarmProgram

SOURCE = Path(__file__).with_suffix(".c")
SHORT = 0
"""Instead of an error: a write that writes only a part."""
KINDS = {
    "open": (errno.EMFILE, errno.EIO, errno.ENOSPC, errno.ENOMEM),
    "write": (errno.ENOSPC, errno.EIO, SHORT),
    "fsync": (errno.EIO, errno.ENOSPC),
    "ftruncate": (errno.ENOSPC, errno.EIO),
    "posix_fallocate": (errno.ENOSPC, errno.EIO),
    "mmap": (errno.ENOMEM,),
    "rename": (errno.ENOSPC, errno.EIO),
}
"""Every kind of call, in the order of the library, and how it may fail."""
_ARMED = struct.Struct("=3q")
_COUNTS = struct.Struct(f"={len(KINDS)}q")
_FIRED = struct.Struct("=q512s")
_BYTES = _ARMED.size + _COUNTS.size + _FIRED.size


class Fault(NamedTuple):
    """One call that fails."""

    kind: str
    nth: int
    """Which call of this kind, from 1."""
    error: int
    """Its errno, or `SHORT`."""

    def __str__(self) -> str:
        return f"{self.kind} {self.nth}: {errno.errorcode[self.error] if self.error else 'short'}"


class FailingCalls:
    """A server, loaded with the library, from which servers are forked."""

    def __init__(self, folder: Path) -> None:
        """Compile the library into ``folder``.

        Raises:
            FileNotFoundError: there is no C compiler.
        """
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            raise FileNotFoundError("expected gcc or cc in PATH, found neither")
        self._library = folder / "failing_calls.so"
        subprocess.run(
            [compiler, "-O1", "-shared", "-fPIC", "-o", self._library, SOURCE, "-ldl"], check=True, timeout=60
        )
        self._control_file = folder / "control"
        self._control_file.write_bytes(bytes(_BYTES))
        with self._control_file.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), _BYTES)
        with self._preloaded():
            self._warm = WarmProgram(SERVER)

    @contextmanager
    def _preloaded(self) -> Iterator[None]:
        """Let programs that are started inside the block load the library."""
        os.environ["LD_PRELOAD"] = str(self._library)
        try:
            yield
        finally:
            del os.environ["LD_PRELOAD"]

    def arm(self, fault: Fault | None) -> None:
        """Count calls from 0 again, and make one fail; None: none fails."""
        kind, nth, error = (-1, 0, 0) if fault is None else (list(KINDS).index(fault.kind), fault.nth, fault.error)
        self._control[:] = _ARMED.pack(-1, 0, 0) + bytes(_BYTES - _ARMED.size)
        self._control[: _ARMED.size] = _ARMED.pack(kind, nth, error)

    @property
    def counts(self) -> dict[str, int]:
        """Calls of each kind since `arm`."""
        return dict(zip(KINDS, _COUNTS.unpack_from(self._control, _ARMED.size), strict=True))

    @property
    def fired(self) -> str:
        """The call that failed, and its file; empty if none has failed yet."""
        fired, what = _FIRED.unpack_from(self._control, _ARMED.size + _COUNTS.size)
        return what.rstrip(b"\0").decode() if fired else ""

    def start(self, watched: Path, log: Path, *flags: str) -> ForkedProcess:
        """Fork a server whose calls on files below ``watched`` are counted, and may fail."""
        environment = server_environment(
            {
                "LD_PRELOAD": str(self._library),
                "DISK_FAULTS_FOLDER": str(watched),
                "DISK_FAULTS_CONTROL": str(self._control_file),
            }
        )
        with log.open("a") as errors:
            return self._warm.start(flags, environment, subprocess.DEVNULL, errors.fileno())

    def close(self) -> None:
        """End the loaded server."""
        self._warm.close()
        self._control.close()
