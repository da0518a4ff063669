"""A server whose usual directories for temporary files are read-only, as in a container with a read-only root."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.caller import Caller
from tests.support.server_process import ServerProcess

READ_ONLY = (
    "mount --bind /tmp /tmp; mount --bind /var/tmp /var/tmp; mount --bind {kept} {kept}; "
    'mount -o remount,bind,ro /tmp; mount -o remount,bind,ro /var/tmp; cd /proc; exec {variables} "$@"'
)


def can_mount() -> bool:
    """Whether this process may mount in a namespace of its own."""
    command = ["unshare", "--mount", "mount", "--bind", "/tmp", "/tmp"]
    return (
        shutil.which("unshare") is not None and not subprocess.run(command, capture_output=True, check=False).returncode
    )


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount")
@pytest.mark.parametrize("directory", ["--memory-dir", "--data-dir"])
def test_temporary_files_are_in_the_directory_of_the_tables(
    start_server: Callable[..., ServerProcess], call: Callable[[ServerProcess], Caller], tmp_path: Path, directory: str
) -> None:
    flags = ["--memory-dir", "/proc/nobody"] if directory == "--data-dir" else []
    within = ("unshare", "--mount", "bash", "-c", READ_ONLY.format(kept=tmp_path, variables="env TMPDIR="), "bash")
    tables = tmp_path / "tables"
    server = start_server(*flags, directory, str(tables), within=within)
    server.wait_for_log(f"temporary files are in {tables}, because no usual directory for them is writable")
    assert len(call(server).create().insert(range(3))) == 3
    assert server.terminate() == 0
