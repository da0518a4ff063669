"""Reads and changes the owner records of directories whose servers have ended."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from replay_proto.owner import OWNER_FILE, OwnerRecord, read_owner
from replay_server.files.owner import storage_of


def record_of(folder: Path) -> OwnerRecord:
    """The record in a folder."""
    record = read_owner(folder).record
    assert record is not None
    return record


def change_record(folder: Path, **changes: object) -> None:
    """Change fields of a record, in place."""
    with (folder / OWNER_FILE).open("r+b") as file:
        file.write(replace(record_of(folder), **changes).to_bytes())  # type: ignore[arg-type]


def make_original(copy: Path) -> None:
    """Let a copy of a directory count as the one that its server wrote to."""
    descriptor = os.open(copy / OWNER_FILE, os.O_RDONLY)
    try:
        change_record(copy, storage=storage_of(descriptor))
    finally:
        os.close(descriptor)
