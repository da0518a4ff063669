"""``replay shards``: the servers over which tables are distributed."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Final

from cyclopts import App, Parameter
from rich.console import Console

from replay_client.cli.lists import shard_list
from replay_client.cli.options import ADDRESSES, DEFAULT_SERVER, Json, Server, client_of, print_json, show
from replay_client.cli.plain import plain
from replay_client.errors import InvalidArgumentError
from replay_client.results.shards import ShardMap
from replay_client.sync.client import ReplayClient

_POLL_S: Final = 1.0

app = App(name="shards", help="Show and change the servers over which tables are distributed.")

Addresses = Annotated[str, Parameter(help="HOST:PORT of all servers in use, separated by commas.")]
ShardId = Annotated[int, Parameter(help="Id of the shard; see `replay shards show`.")]


@app.command(name="show")
def show_all(*, server: Server = DEFAULT_SERVER, as_json: Json = False) -> None:
    """List the servers and the state of their shards."""
    with client_of(server) as client:
        _show(client.shards.map(), server, as_json)


@app.command(name="set")
def set_addresses(addresses: Addresses, /, *, as_json: Json = False) -> None:
    """Distribute tables over these servers. Servers in use keep their ids; others get new ids."""
    with client_of(addresses, side=ADDRESSES) as client:
        _show(client.shards.set([each.strip() for each in addresses.split(",")]), addresses, as_json)


@app.command
def drain(shard: ShardId, /, *, server: Server = DEFAULT_SERVER, as_json: Json = False) -> None:
    """Give a server no new rows; its rows are still drawn."""
    with client_of(server) as client:
        _show(client.shards.mark(shard, state="draining"), server, as_json)


@app.command
def lost(shard: ShardId, /, *, server: Server = DEFAULT_SERVER, as_json: Json = False) -> None:
    """Give up a server that will not come back, and its rows."""
    with client_of(server) as client:
        _show(client.shards.mark(shard, state="lost"), server, as_json)


@app.command
def retire(
    shard: ShardId,
    /,
    *,
    server: Server = DEFAULT_SERVER,
    wait: Annotated[bool, Parameter(negative="", help="Wait until its rows are no longer needed.")] = False,
    now: Annotated[bool, Parameter(negative="", help="Give up its rows.")] = False,
    as_json: Json = False,
) -> None:
    """Remove a draining server if all its rows are older than the rows on the other servers."""
    with client_of(server) as client:
        _show(_retired(client, shard, is_patient=wait, is_forced=now), server, as_json)


def _retired(client: ReplayClient, shard: int, *, is_patient: bool, is_forced: bool) -> ShardMap:
    said = ""
    while not is_forced:
        try:
            return client.shards.retire(shard)
        except InvalidArgumentError as error:
            shards = client.shards.map()
            is_draining = shards is not None and any(
                each.id == shard and each.state == "draining" for each in shards.in_use
            )
            if not is_patient or not is_draining:
                raise
            if error.message != said:
                print(error.message, file=sys.stderr)
            said = error.message
        time.sleep(_POLL_S)
    return client.shards.mark(shard, state="retired")


@app.command
def move(
    shard: ShardId,
    address: Annotated[str, Parameter(help="Its new HOST:PORT.")],
    /,
    *,
    server: Server = DEFAULT_SERVER,
    as_json: Json = False,
) -> None:
    """Tell clients where a server now runs, with the same tables."""
    with client_of(server) as client:
        _show(client.shards.move(shard, address=address), server, as_json)


def _show(shards: ShardMap | None, server: str, as_json: bool) -> None:
    if as_json:
        listed = () if shards is None else shards.shards
        version = 0 if shards is None else shards.version
        print_json({"version": version, "shards": [plain(shard) for shard in listed]})
    else:
        show(shard_list(() if shards is None else shards.shards, server), Console())
