"""Detects whether the machine went down while tables were open, using a file with the boot id.

    <root>/boot.json        {"boot_id": "...", "is_clean": false}

If only the server was killed, everything it stored is still in the page cache. If the machine went down without a clean
shutdown of the server, the disk may contain a mixture of old and new pages.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from replay_server.files.durable_files import overwrite_file
from replay_server.files.mapped_file import tells_full

log = logging.getLogger(__name__)

BOOT_FILE = "boot.json"
_BYTES = 128
"""Size of the mark, including padding. It is written in place, which needs no disk space. A torn mark counts as
unclean."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class BootMark:
    """The mark of one root."""

    def __init__(self, root: Path) -> None:
        """Read the last server's mark."""
        self._path = root / BOOT_FILE
        self._boot_id = _BOOT_ID.read_text("ascii").strip()
        self.is_there = self._path.exists()
        """Whether there is a mark. A new root has none, and neither has a root used only by versions without marks."""
        self.was_clean = self._was_clean()
        """Whether all stores of the last server are reliable: it shut down cleanly, or ran during this boot."""
        self._has_begun = False

    def begin(self) -> None:
        """Record that the tables are open and consistent, before they change."""
        try:
            self._write(is_clean=False)
        except OSError as error:
            # Remove the earlier mark, which may be clean: a root without a mark counts as unclean.
            self._path.unlink(missing_ok=True)
            if not tells_full(error):
                raise
            log.warning("%s: no space to mark tables as open; after a reboot they count as torn", self._path)
            return
        self._has_begun = True

    def end(self) -> None:
        """Record a clean shutdown. Call this when everything is on disk. Without a successful `begin`, do nothing."""
        if self._has_begun:
            self._write(is_clean=True)

    def _was_clean(self) -> bool:
        try:
            mark = json.loads(self._path.read_text("utf-8"))
            return mark["is_clean"] is True or mark["boot_id"] == self._boot_id
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _write(self, *, is_clean: bool) -> None:
        mark = json.dumps({"boot_id": self._boot_id, "is_clean": is_clean})
        overwrite_file(self._path, mark.ljust(_BYTES).encode())
