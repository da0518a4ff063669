"""Attacks by other users of the machine, through its memory directory or disk."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.support.server_process import ServerProcess, run_to_its_end
from tools.attacks.arena import Arena
from tools.attacks.attack import Attack, Target

_NOBODY: Final = 65534
_LEVELS: Final = 1500


def become_nobody() -> None:
    """Switch to another user, if permitted."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)


class PlantedInMemory(Attack):
    """Plants fake tables of a killed server, which are hard to sweep, in the memory directory."""

    name = "folders planted in the memory directory: 1,500 levels deep, a link, a pipe as lock file"

    def prepare(self, arena: Arena) -> None:
        self.memory = _shared_folder(arena)
        self.kept = Path(tempfile.mkdtemp(dir=arena.folder))
        (self.kept / "file").touch()

    def act(self, target: Target) -> None:
        become_nobody()
        target.goes_on()
        os.umask(0)
        with suppress(FileExistsError):
            self._nest(self.memory / "replay-server-evil")
            piped = self.memory / "replay-server-pipe"
            piped.mkdir()
            os.mkfifo(piped / "lock")
            (self.memory / "replay-server-link").symlink_to(self.kept)
            linked = self.memory / "replay-server-linked-lock"
            linked.mkdir()
            (linked / "lock").symlink_to(self.kept / "made")

    def check(self, arena: Arena) -> None:
        server = ServerProcess(arena.folder / "another.log", "--memory-dir", str(self.memory), forked=True)
        try:
            assert server.terminate() == 0
        finally:
            server.kill()
        assert [path.name for path in self.kept.iterdir()] == ["file"], "files of another folder were made or removed"

    def _nest(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "lock").touch()
        here = os.open(folder, os.O_DIRECTORY)
        for _ in range(_LEVELS):
            os.mkdir("d", dir_fd=here)
            inner = os.open("d", os.O_DIRECTORY, dir_fd=here)
            os.close(here)
            here = inner
        os.close(here)


class PlantedDataDirectory(Attack):
    """Creates the data directory before the server does, with links to another user's files."""

    name = "a data directory created by another user, with links"

    def prepare(self, arena: Arena) -> None:
        self.data = _shared_folder(arena) / "data"
        self.kept = Path(tempfile.mkdtemp(dir=arena.folder))
        self.kept.chmod(0o711)

    def act(self, target: Target) -> None:
        become_nobody()
        target.goes_on()
        os.umask(0)
        self.data.mkdir()
        (self.data / "tables").symlink_to(self.kept)
        (self.data / "lock").symlink_to(self.kept / "made")

    def check(self, arena: Arena) -> None:
        ended = run_to_its_end("--data-dir", str(self.data), "--exit-with-parent")
        assert ended.returncode != 0, "the server started"
        assert "Traceback" not in ended.stderr, ended.stderr
        assert [*self.kept.iterdir()] == [], "files were made in another folder"
        assert stat.S_IMODE(self.kept.stat().st_mode) == 0o711, "the mode of another folder was changed"


def _shared_folder(arena: Arena) -> Path:
    """A world-writable folder, like /tmp and /dev/shm."""
    arena.folder.chmod(0o711)
    folder = Path(tempfile.mkdtemp(dir=arena.folder))
    folder.chmod(0o1777)
    return folder


ATTACKS: Final[tuple[type[Attack], ...]] = (PlantedInMemory, PlantedDataDirectory)
