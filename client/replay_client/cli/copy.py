"""``replay copy``: copies tables from one service to another one, of any number of servers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from cyclopts import Parameter

from replay_client.cli.options import COPY_TIMEOUT_S, DESTINATION, SOURCE, Json, print_json
from replay_client.cli.plain import plain
from replay_client.errors import TableExistsError, UnauthenticatedError
from replay_client.results.copies import Copied
from replay_client.sync.copying import TableCopy, prepared
from replay_client.sync.progress import Advance, progress_bar, progress_lines

Source = Annotated[str, Parameter(help="HOST:PORT of the server to copy from, or of several, separated by commas.")]
Destination = Annotated[str, Parameter(help="HOST:PORT of the server to copy to, or of several.")]
Tables = Annotated[tuple[str, ...], Parameter(help="Names of tables; default: all.")]


def copy(source: Source, destination: Destination, tables: Tables = (), /, *, as_json: Json = False) -> None:
    """Copy tables to another service, which may have more or fewer servers.

    The tables are created with the same config. If a copy was interrupted, the same command continues.
    For the destination, `REPLAY_DESTINATION_TOKEN` replaces `REPLAY_TOKEN`, and `REPLAY_DESTINATION_TLS_CA`, `_CERT`
    and `_KEY` replace the variables that begin with `REPLAY_TLS`.
    """
    with _explained(), SOURCE.open(source, COPY_TIMEOUT_S) as old, DESTINATION.open(destination, COPY_TIMEOUT_S) as new:
        done = []
        for each in prepared(old, new, tables):
            done.append(_copied(each))
            if not as_json:
                _show(done[-1])
    if as_json:
        print_json([plain(each) for each in done])


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except UnauthenticatedError as error:
        raise UnauthenticatedError(
            f"{error.message}: set {SOURCE.token} for the source, {DESTINATION.token} for the destination"
        ) from error


def _copied(table: TableCopy) -> Copied:
    display = progress_bar if sys.stderr.isatty() else progress_lines
    with display(table.name, table.total) as advance, _told(table) as count:
        return table.run(lambda rows: (advance(rows), count(rows)))


@contextmanager
def _told(table: TableCopy) -> Iterator[Advance]:
    """Print how far a copy is that ends early. Yields what counts its rows."""
    rows = 0

    def count(more: int) -> None:
        nonlocal rows
        rows += more

    try:
        yield count
    except TableExistsError:
        raise
    except BaseException:
        rows = max(rows, table.found)
        print(
            f"replay: {rows:,} of {table.total:,} rows of table {table.name} are copied; the same command continues",
            file=sys.stderr,
        )
        raise


def _show(done: Copied) -> None:
    earlier = f", {done.found:,} of them earlier" if done.found else ""
    print(f"copied {done.rows - done.overtaken:,} rows of table {done.table}{earlier}", flush=True)
    if done.overtaken:
        print(f"  left out: {done.overtaken:,} rows that the source evicted before their turn")
    if done.evicted:
        print(f"  left out: the oldest {done.evicted:,} rows, which do not fit their servers' shares of the capacity")
