"""``replay checkpoint``: create, list and verify checkpoints."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter
from cyclopts.types import PositiveInt
from rich.console import Console

from replay_client.cli import lists
from replay_client.cli.formats import bytes_text, count_text
from replay_client.cli.options import DEFAULT_SERVER, Json, Server, client_of, print_json, show
from replay_client.cli.plain import plain_fields
from replay_client.results.copies import Checkpoint

PATIENCE_S = 3600.0
"""Time limit in seconds: large tables take a while to copy and to verify."""

app = App(
    name="checkpoint",
    help="Create, list and verify checkpoints of the server's tables.",
)

Tables = Annotated[
    tuple[str, ...], Parameter(alias="-t", negative="", help="A table to copy; may be repeated; default: all.")
]
Series = Annotated[
    str | None,
    Parameter(
        help='Begins the name of the checkpoint. Absent: "checkpoint", or with a token for some tables the first '
        "table's name."
    ),
]
Keep = Annotated[
    PositiveInt | None, Parameter(help="Checkpoints to keep in the series; default: the server's setting.")
]
Partial = Annotated[bool, Parameter(negative="", help="Accept a checkpoint that lacks the parts of some servers.")]
Name = Annotated[str, Parameter(help="Name of the checkpoint.")]


@app.command
def create(
    *,
    server: Server = DEFAULT_SERVER,
    table: Tables = (),
    series: Series = None,
    keep: Keep = None,
    as_json: Json = False,
) -> None:
    """Write a checkpoint now, while the server keeps running."""
    with client_of(server) as client:
        _show(client.checkpoint(table, series=series, keep=keep, timeout_s=PATIENCE_S), "written", as_json)


@app.command(name="list")
def list_all(*, server: Server = DEFAULT_SERVER, as_json: Json = False) -> None:
    """List the checkpoints of a server, oldest first."""
    with client_of(server) as client:
        found = client.checkpoints()
    if as_json:
        print_json([_plain(checkpoint) for checkpoint in found])
    else:
        show(lists.checkpoint_list(found, server), Console())


@app.command
def verify(name: Name, /, *, server: Server = DEFAULT_SERVER, partial: Partial = False, as_json: Json = False) -> None:
    """Verify a checkpoint; if this fails, name the corrupt file, or the servers whose parts are missing."""
    with client_of(server) as client:
        _show(client.verify_checkpoint(name, timeout_s=PATIENCE_S, partial=partial), "whole", as_json)


def _show(checkpoint: Checkpoint, what: str, as_json: bool) -> None:
    if as_json:
        print_json(_plain(checkpoint))
        return
    rows = sum(table.size for table in checkpoint.tables.values())
    print(
        f"checkpoint {checkpoint.name} {what}: {len(checkpoint.tables)} tables, {count_text(rows)} rows, "
        f"{bytes_text(checkpoint.bytes)}, in {_place(checkpoint)}"
    )
    for table in checkpoint.tables.values():
        if table.left_out:
            print(f"  of {table.name}, the oldest {table.left_out:,} rows were overwritten before their turn")


def _place(checkpoint: Checkpoint) -> str:
    return f"parts of {len(checkpoint.parts)} servers" if checkpoint.parts else checkpoint.directory


def _plain(checkpoint: Checkpoint) -> dict[str, Any]:
    whole = plain_fields(checkpoint, "shards", "parts")
    if not checkpoint.parts:
        return whole
    parts = {str(shard_id): _plain(part) for shard_id, part in checkpoint.parts.items()}
    return {**whole, "parts": parts, "missing": list(checkpoint.missing)}
