"""Makes the tables of a restored checkpoint visible all at once, even if the server is killed meanwhile.

    <root>/tables/.new-restored/<name>/         tables that are being restored; removed by the next start
    <root>/tables/.restored/<name>/             all tables are restored; they are moved to their places
    <root>/tables/.restored/_checkpoint.json    the checkpoint that they come from

Renaming ``.new-restored`` to ``.restored`` is the commit point. The folder ``.restored`` remains until the server
serves, so that a start with the same checkpoint finds that it is already restored.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from replay_server.files.durable_files import sync_path
from replay_server.storage.permissions import FOLDER_MODE
from replay_server.storage.table_directory import UNFINISHED

_STAGE = f"{UNFINISHED}restored"
_RESTORED = ".restored"


@contextmanager
def all_at_once(tables: Path) -> Iterator[Path]:
    """Yield an empty folder. When the block ends, the tables in it appear in ``tables``; if it raises, none does."""
    stage = tables / _STAGE
    shutil.rmtree(stage, ignore_errors=True)
    try:
        stage.mkdir(mode=FOLDER_MODE)
        yield stage
        sync_path(stage)
        stage.rename(tables / _RESTORED)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise
    place(tables)


def place(tables: Path) -> Path | None:
    """Move restored tables to their places.

    Return the folder that held them and still has the other files; None if there are no restored tables.
    """
    folder = tables / _RESTORED
    if not folder.is_dir():
        return None
    sync_path(tables)
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            path.rename(tables / path.name)
    sync_path(tables)
    return folder


def settle(tables: Path) -> None:
    """Forget what was restored, because the server serves the tables now.

    This cannot fail: if the folder remains, a later start with the same checkpoint does nothing instead of refusing it.
    """
    shutil.rmtree(tables / _RESTORED, ignore_errors=True)
