"""The command line of `replay-reshard`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from replay_proto.command_line import check_address, new_app, run_app

from replay_server.errors import FatalError
from replay_server.files.many_files import allow_many_files
from replay_server.resharding.dividing import new_map, new_shards
from replay_server.resharding.old_rows import OldRows
from replay_server.resharding.parts import ReshardError, read_parts
from replay_server.resharding.placing import placement_of
from replay_server.resharding.writing import NewTable, write_parts

_FAILURE = 1


def _check_addresses(_: type, addresses: str) -> None:
    for address in _split(addresses):
        check_address(address)


def _split(addresses: str) -> list[str]:
    return [address.strip() for address in addresses.split(",")]


Parts = Annotated[tuple[Path, ...], Parameter(help="The folder of each server's part of the checkpoint.")]
To = Annotated[str, Parameter(validator=_check_addresses, help="HOST:PORT of all new servers, separated by commas.")]
Out = Annotated[Path, Parameter(help="Folder to create, with a part for each new server.")]
Partial = Annotated[bool, Parameter(negative="", help="Give up the rows of parts that are missing.")]


def reshard(parts: Parts, /, *, to: To, out: Out, partial: Partial = False) -> None:
    """Reshard; see `app`."""
    addresses = _split(to)
    if out.exists() or not out.parent.is_dir():
        raise ReshardError(f"--out: expected a new folder in an existing one, got {out}")
    old = read_parts(parts, partial=partial)
    if old.shards is None and len(addresses) == 1:
        raise ReshardError(f"{parts[0]} is of one server already: any server can restore it")
    allow_many_files()
    shards = None if len(addresses) == 1 else new_map(old.shards, addresses)
    ids = [0] if shards is None else [shard.id for shard in shards.shards]
    divided = [(table, new_shards(table, ids)) for table in old.tables]
    print(f"verifying {len(old.parts)} parts", flush=True)
    old.verify()
    tables = [NewTable(table, made, placement_of(OldRows(table), len(ids))) for table, made in divided]
    rows = sum(table.old.size for table in tables)
    print(f"writing {len(tables)} tables, {rows:,} rows", flush=True)
    taken_s = min(each.manifest.taken_s for each in old.parts)
    try:
        folders = write_parts(out, old.name, ids, shards, tables, taken_s)
    except OSError as error:
        raise ReshardError(f"--out: {out} cannot be written: {error}") from error
    _report(tables, addresses, folders)


app = new_app(
    "replay-reshard",
    "Rewrite a checkpoint of several servers, or of one, for another number of servers, at any addresses. "
    "Give the folders of all of its parts, which `replay checkpoint list --json` shows. Rows keep their values and "
    "priorities, but get new keys. No server has to run.",
    default_command=reshard,
)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command, with the arguments of this process if none are given, and return its exit code."""
    try:
        run_app(app, arguments)
    except (FatalError, OSError) as error:
        print(f"replay-reshard: {error}", file=sys.stderr)
        return _FAILURE
    return 0


def _report(tables: Sequence[NewTable], addresses: Sequence[str], folders: Sequence[Path]) -> None:
    for table in tables:
        if table.evicted:
            print(f"table {table.old.name}: the oldest {table.evicted:,} rows do not fit, and were left out")
    for number, (address, folder) in enumerate(zip(addresses, folders, strict=True)):
        rows = sum(min(table.placement.sizes[number], table.capacity) for table in tables)
        print(f"{address}: {rows:,} rows; start it with --restore {folder}")
