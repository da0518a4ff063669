"""``replay export`` and ``replay import``: tables as Parquet files or Minari datasets, and back."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.types import PositiveInt
from cyclopts.validators import Number
from replay_proto.schema import Column
from replay_proto.steps import Derived, Transitions

from replay_client._extras import check_extra
from replay_client._operations.reading import RowOrder
from replay_client.cli.formats import bytes_text
from replay_client.cli.options import (
    COPY_TIMEOUT_S,
    DEFAULT_SERVER,
    FAILURE,
    Json,
    Server,
    TableName,
    client_of,
    print_json,
)
from replay_client.cli.plain import plain, plain_fields
from replay_client.errors import InvalidArgumentError, ReplayError
from replay_client.sync.client import ReplayClient
from replay_client.sync.table import Table

DEFAULT = Transitions()
_MINARI = ("minari", "h5py", "PIL")

Directory = Annotated[Path, Parameter(help="Directory for the file TABLE.parquet, or for the dataset TABLE-v0.")]
Format = Annotated[Literal["parquet", "minari"], Parameter(name="--format", help="What to write.")]
Order = Annotated[RowOrder | None, Parameter(help="Order of rows in a Parquet file; default: key.")]
DatasetId = Annotated[str | None, Parameter(help="ID of the Minari dataset; default: TABLE-v0.")]
Env = Annotated[str | None, Parameter(help="Gymnasium environment of the Minari dataset, for its spaces.")]
Source = Annotated[Path, Parameter(help="A Parquet file, or the directory of a Minari dataset.")]
MaybeTableName = Annotated[
    str | None, Parameter(help="Name of the table; default: that of the exported table, or of the dataset.")
]
Append = Annotated[bool, Parameter(negative="", help="Add the rows to an existing table.")]
Capacity = Annotated[
    PositiveInt | None, Parameter(help="Capacity of the new table; default: that of the exported table, or all rows.")
]
NStep = Annotated[
    PositiveInt | None, Parameter(help="Steps of a transition in the new table of a Minari dataset; default: 1.")
]
Gamma = Annotated[
    float | None, Parameter(validator=Number(gte=0, lte=1), help="Discount factor of such a table; default: 0.99.")
]
Priorities = Annotated[bool, Parameter(help="Restore the priorities of a Parquet file.")]
Keys = Annotated[bool, Parameter(negative="", help="Refuse a Parquet file whose rows cannot get the same keys.")]


def export(
    table: TableName,
    directory: Directory,
    /,
    *,
    server: Server = DEFAULT_SERVER,
    what: Format = "parquet",
    order: Order = None,
    dataset_id: DatasetId = None,
    env: Env = None,
    as_json: Json = False,
) -> None:
    """Write a table to a directory, while it remains in use."""
    if what == "parquet":
        _check_unused("--format parquet", dataset_id=dataset_id, env=env)
    else:
        _check_unused("--format minari", order=order)
    with _failures_shown(), client_of(server, timeout_s=COPY_TIMEOUT_S) as client:
        handle = client.table(table)
        with _created(directory):
            if what == "parquet":
                _export_parquet(handle, directory / f"{table}.parquet", order or "key", as_json)
            else:
                _export_minari(handle, directory, dataset_id or f"{table}-v0", env, as_json)


def import_table(
    source: Source,
    table: MaybeTableName = None,
    /,
    *,
    server: Server = DEFAULT_SERVER,
    append: Append = False,
    capacity: Capacity = None,
    priorities: Priorities = True,
    keys: Keys = False,
    n_step: NStep = None,
    gamma: Gamma = None,
    as_json: Json = False,
) -> None:
    """Load a Parquet file or a Minari dataset into a new table, or into an existing one."""
    if append:
        _check_unused("--append", capacity=capacity, n_step=n_step, gamma=gamma)
    if source.is_dir():
        _check_unused("a Minari dataset", priorities=None if priorities else False, keys=keys or None)
    else:
        _check_unused("a Parquet file", n_step=n_step, gamma=gamma)
    with _failures_shown(), client_of(server, timeout_s=COPY_TIMEOUT_S) as client:
        if source.is_dir():
            steps = Transitions(n_step or DEFAULT.n_step, DEFAULT.gamma if gamma is None else gamma)
            name, rows = _import_minari(client, source, table, steps, append, capacity)
        else:
            check_extra("arrow", "pyarrow")
            options: dict[str, Any] = {"priorities": priorities, "keys": keys, "progress": _is_watched()}
            name, rows = _import_parquet(client, source, table, append, capacity, options)
    if as_json:
        print_json({"table": name, "rows": rows})
    else:
        print(f"inserted {rows:,} rows into table {name}")


@contextmanager
def _created(directory: Path) -> Iterator[None]:
    """Create a directory. After an error in the block, remove the directories that were created and are still empty."""
    new = [each for each in (directory, *directory.parents) if not each.exists()]
    try:
        _make(directory)
        yield
    except BaseException:
        with suppress(OSError):
            for each in new:
                each.rmdir()
        raise


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        got = f"{str(directory)!r}: {error.strerror}"
        raise InvalidArgumentError.of_field("directory", "a directory, new or not", got) from None


def _check_unused(reason: str, **options: object) -> None:
    """Refuse options that have no effect; the error names one that was given."""
    for name, value in options.items():
        if value is not None:
            raise InvalidArgumentError.of_field(name, f"no such option with {reason}", str(value))


def _export_parquet(table: Table, path: Path, order: RowOrder, as_json: bool) -> None:
    done = table.to_parquet(path, order=order, progress=_is_watched())
    if as_json:
        print_json(plain(done))
        return
    print(f"wrote {done.rows:,} rows of table {table.name} to {path}, {bytes_text(path.stat().st_size)}")
    _show_left_out({"rows were evicted before they were read": done.overtaken})


def _export_minari(table: Table, directory: Path, dataset_id: str, env: str | None, as_json: bool) -> None:
    check_extra("minari", *_MINARI)
    os.environ["MINARI_DATASETS_PATH"] = str(directory.resolve())  # Minari fails with a relative path
    from replay_client.minari import export_dataset  # optional, and takes a while to load

    done = export_dataset(table, dataset_id, env=env, progress=_is_watched())
    if as_json:
        print_json(plain_fields(done, "dataset"))
        return
    where = directory / dataset_id
    print(f"wrote {done.episodes:,} episodes of table {table.name}, with {done.steps:,} steps, to {where}")
    _show_left_out({"episodes have no end": done.unfinished, "episodes lack steps": done.broken})


def _show_left_out(counts: Mapping[str, int]) -> None:
    for what, count in counts.items():
        if count:
            print(f"  left out: {count:,} {what}")


def _import_parquet(
    client: ReplayClient, path: Path, name: str | None, append: bool, capacity: int | None, options: dict[str, Any]
) -> tuple[str, int]:
    if append:
        if name is None:
            raise InvalidArgumentError.of_field("table", "the name of a table with --append", "none")
        return name, client.table(name).load_parquet(path, **options).rows
    if capacity is not None:
        options["capacity"] = capacity
    table = client.load_parquet(path, name=name, **options)
    return table.name, table.describe().inserted


def _import_minari(
    client: ReplayClient, path: Path, name: str | None, steps: Transitions, append: bool, capacity: int | None
) -> tuple[str, int]:
    check_extra("minari", *_MINARI)
    import minari

    from replay_client.minari import columns_from_dataset, import_dataset, rows_in_dataset
    from replay_client.spaces import derived_of_transitions

    data = path.resolve() / "data"
    try:
        dataset = minari.MinariDataset(data if data.is_dir() else path.resolve())
    except ValueError as error:
        expected = "a Parquet file, or the directory of a Minari dataset"
        raise InvalidArgumentError.of_field("source", expected, f"{str(path)!r}: {error}") from None
    name = name or dataset.spec.dataset_name
    if append:
        table = client.table(name)
    else:
        stored = columns_from_dataset(dataset)
        columns: dict[str, Column | Derived] = {**stored, **derived_of_transitions(stored)}
        capacity = capacity or rows_in_dataset(dataset)
        table = client.create_table(name, columns=columns, capacity=capacity, steps=steps, if_exists="error")
    return name, import_dataset(table, dataset, progress=_is_watched()).rows


@contextmanager
def _failures_shown() -> Iterator[None]:
    """Print file system errors and exit. For a client's error, print how many rows were inserted before it."""
    try:
        yield
    except ReplayError as error:
        for note in getattr(error, "__notes__", ()):
            print(f"replay: {note}", file=sys.stderr)
        raise
    except BrokenPipeError:
        raise  # `run_app` handles it
    except OSError as error:
        print(f"replay: {error}", file=sys.stderr)
        sys.exit(FAILURE)


def _is_watched() -> bool:
    """Whether somebody sees a progress bar."""
    return sys.stderr.isatty()
