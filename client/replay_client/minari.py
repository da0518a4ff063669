"""Exports the episodes of a table of steps to a Minari dataset, and imports those of a dataset into a table.

    saved = export_dataset(table, "cartpole/replay-v0", env="CartPole-v1")
    print(saved.episodes, "episodes;", saved.unfinished, "had not ended,", saved.broken, "have lost their first steps")

    dataset = minari.load_dataset("cartpole/replay-v0")
    table = client.create_table(
        "demos",
        columns={**columns_from_dataset(dataset), "next_obs": Next("obs"), "discount": Discount()},
        capacity=rows_in_dataset(dataset),
        steps=Transitions(),
    )
    import_dataset(table, dataset)

Observations, actions and rewards are the columns ``obs``, ``action`` and ``reward``, or others that the caller names.
Values of `Dict` and `Tuple` spaces are nested columns: ``obs/camera``. The final observation is in the row that closes
the episode. All other stored columns are in the ``infos`` of a dataset.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import gymnasium
import minari
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.dataset.minari_dataset import parse_dataset_id
from minari.storage import get_dataset_path
from numpy.typing import NDArray
from replay_proto.framing import Array
from replay_proto.schema import SEPARATOR, Column, Schema
from replay_proto.v1 import replay_pb2

from replay_client._extras import check_extra
from replay_client._learning.answers import joined_rows, selected_rows
from replay_client._operations.reading import is_ended
from replay_client._rows.checks import as_array, checked_array
from replay_client.batch import Rows
from replay_client.errors import InvalidArgumentError
from replay_client.spaces import columns_from_space, flatten_value, unflatten_value
from replay_client.sync.progress import progress_bar
from replay_client.sync.row_loader import check_loadable
from replay_client.sync.table import Table

ROWS_AT_ONCE: Final = 1 << 13
"""Imported episodes are inserted together when they have this many rows."""
_KINDS: Final = {"u": "i", "V": "f"}
"""Kinds of dtypes that count as another one: unsigned integers, and bfloat16."""


@dataclass(frozen=True)
class ExportedDataset:
    """Episodes that were written to a dataset."""

    dataset: minari.MinariDataset
    """The new dataset."""
    episodes: int
    """Number of its episodes."""
    steps: int
    """Number of its steps."""
    unfinished: int
    """Number of episodes that were left out because they have no end: they continue, or were abandoned."""
    broken: int
    """Number of episodes that were left out because steps are missing: they were evicted, or removed by a reset."""
    inserted: int
    """Rows ever inserted into the table when the export began. Rows inserted later are not in the dataset."""


@dataclass(frozen=True)
class ImportedDataset:
    """Episodes that were inserted from a dataset."""

    episodes: int
    """Number of episodes."""
    steps: int
    """Number of steps."""
    rows: int
    """Number of rows: steps, and a row that closes each episode."""


@dataclass(frozen=True)
class _Names:
    """Columns of observations, actions and rewards; observations and actions may be nested."""

    obs: str
    action: str
    reward: str

    def check(self, table: Table) -> None:
        """Check that a table is a table of steps with these columns."""
        if table.steps is None:
            raise InvalidArgumentError.of_field("table", "a table with steps", f"table {table.name!r}, without steps")
        for field, name in vars(self).items():
            if not _below(table.schema, name) or (field == "reward" and name not in table.schema):
                raise InvalidArgumentError.of_field(field, f"one of the columns {', '.join(table.schema)}", repr(name))

    def others(self, schema: Schema) -> list[str]:
        """The names of all other stored columns."""
        known = set().union(*(_below(schema, name) for name in vars(self).values()))
        return [name for name in schema if name not in known]


def export_dataset(
    table: Table,
    dataset_id: str,
    *,
    obs: str = "obs",
    action: str = "action",
    reward: str = "reward",
    env: str | EnvSpec | gymnasium.Env[Any, Any] | None = None,
    observation_space: gymnasium.Space[Any] | None = None,
    action_space: gymnasium.Space[Any] | None = None,
    progress: bool = False,
    **details: Any,
) -> ExportedDataset:
    """Write the complete episodes of a table to a new local dataset.

    The table can be used during the export. Rows inserted after its start are not written. Episodes that have no end,
    or whose first steps were evicted, are left out and counted.

    Args:
        table: a table of steps. Its episodes must have been ended with final values of all observation columns.
        dataset_id: ID of the dataset, such as ``"cartpole/replay-v0"``. Minari stores it below
            ``MINARI_DATASETS_PATH``, or in the home directory.
        obs: column of observations, or the outer name of nested ones.
        action: column of actions, or the outer name of nested ones.
        reward: column of rewards.
        env: environment of the dataset, which users can recover from it. It also provides the default spaces.
        observation_space: space of the observations. None: the space of `env`. If there is no `env` either, an
            unlimited `Box` for each column.
        action_space: space of the actions, like `observation_space`.
        progress: show a bar on standard error (needs the extra ``cli``).
        **details: more arguments of `minari.create_dataset_from_buffers`: ``author``, ``description``,
            ``algorithm_name``, ``data_format``. Images are stored without loss, unless ``jpeg_encoding=True``.

    Raises:
        InvalidArgumentError: the table has no steps, lacks a column, or does not match the spaces; the environment
            cannot be made; or the ID is malformed or taken. Nothing was written.
        ReplayError: rows cannot be read. The incomplete dataset is removed.
    """
    names = _Names(obs, action, reward)
    names.check(table)
    if env is not None:
        made = _made(env) if isinstance(env, str | EnvSpec) else env
        observation_space = observation_space or made.observation_space
        action_space = action_space or made.action_space
        if made is not env:
            made.close()
    observation_space = _checked_space("observation_space", table.schema, obs, observation_space)
    action_space = _checked_space("action_space", table.schema, action, action_space)
    reader = table.episodes(progress=progress)
    episodes = _WholeEpisodes(reader)
    path, others, is_arrow = _unused_path(dataset_id), names.others(table.schema), details.get("data_format") == "arrow"
    try:
        dataset = _new_dataset(
            dataset_id, env=env, observation_space=observation_space, action_space=action_space, **details
        )
        dataset.storage.update_episodes(
            EpisodeBuffer(
                observations=_values_in(observation_space, obs, rows),
                actions=_values_in(action_space, action, selected_rows(rows, np.arange(rows.batch_size - 1))),
                rewards=rows[reward][:-1],
                terminations=_last_is(rows, replay_pb2.EPISODE_END_TERMINATED),
                truncations=_last_is(rows, replay_pb2.EPISODE_END_TRUNCATED),
                infos={name: _info(as_array(rows[name]), is_arrow=is_arrow) for name in others},
            )
            for rows in episodes
        )
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return ExportedDataset(
        minari.MinariDataset(dataset.storage),
        episodes.whole,
        episodes.steps,
        episodes.unfinished,
        episodes.broken,
        reader.inserted,
    )


def _made(env: str | EnvSpec) -> gymnasium.Env[Any, Any]:
    try:
        return gymnasium.make(env)
    except gymnasium.error.Error as error:
        raise InvalidArgumentError.of_field("env", "an environment that Gymnasium can make", str(error)) from None


def columns_from_dataset(
    dataset: minari.MinariDataset, *, obs: str = "obs", action: str = "action", reward: str = "reward"
) -> dict[str, Column]:
    """Derive the stored columns for the steps of a dataset; rewards are float32. Names are as for `import_dataset`.

    Raises:
        InvalidArgumentError: values of a space have no fixed dtype and shape, as in `Text`.
    """
    spaces_of = columns_from_space(dataset.observation_space, obs) | columns_from_space(dataset.action_space, action)
    return {**spaces_of, reward: Column("float32")}


def rows_in_dataset(dataset: minari.MinariDataset) -> int:
    """Return how many rows a dataset needs in a table: one for each step, and one that closes each episode."""
    return int(dataset.total_steps + dataset.total_episodes)


def import_dataset(
    table: Table,
    dataset: minari.MinariDataset,
    *,
    obs: str = "obs",
    action: str = "action",
    reward: str = "reward",
    timeout_s: float | None = None,
    progress: bool = False,
) -> ImportedDataset:
    """Insert all episodes of a dataset into a table of steps, exactly once.

    The dataset is read twice: all episodes are checked before the first one is inserted. Columns of the table other
    than observations, actions and rewards are taken from ``infos``; other infos are ignored.
    An episode that is neither terminated nor truncated counts as truncated.

    Args:
        table: a table of steps.
        dataset: the dataset, or a part of it, for example from `minari.MinariDataset.filter_episodes`.
        obs: column of observations, or the outer name of nested ones.
        action: column of actions, or the outer name of nested ones.
        reward: column of rewards.
        timeout_s: seconds that each request waits, as for `Table.insert`.
        progress: show a bar on standard error (needs the extra ``cli``).

    Raises:
        InvalidArgumentError: the table has no steps, its columns are not those of the dataset, or a column cannot hold
            a value. Nothing was inserted.
        MissingExtraError: the extra ``cli`` is not installed.
        ReplayError: as for `Table.insert`. A note on the error says how many rows were inserted.
    """
    names = _Names(obs, action, reward)
    names.check(table)
    _checked_space("observation_space", table.schema, obs, dataset.observation_space)
    _checked_space("action_space", table.schema, action, dataset.action_space)
    if progress:
        check_extra("cli", "rich")
    for parts in _grouped(dataset, names, table.schema):
        check_loadable(table.schema, joined_rows(parts), of_steps=True, priorities=False)
    loader, episodes = table.loader(priorities=False, timeout_s=timeout_s), 0
    bar = progress_bar(table.name, rows_in_dataset(dataset)) if progress else nullcontext(lambda _: None)
    with bar as advance:
        for parts in _grouped(dataset, names, table.schema):
            rows = joined_rows(parts)
            loader.insert(rows)
            advance(rows.batch_size)
            episodes += len(parts)
    return ImportedDataset(episodes, loader.inserted - episodes, loader.inserted)


def _grouped(dataset: minari.MinariDataset, names: _Names, schema: Schema) -> Iterator[list[Rows]]:
    """Read a dataset in groups of episodes that are inserted together; episodes without steps are left out."""
    others, group = names.others(schema), list[Rows]()
    for rows in (_rows_of(episode, names, others) for episode in dataset.iterate_episodes()):
        if rows.batch_size > 1:
            group.append(rows)
        if sum(each.batch_size for each in group) >= ROWS_AT_ONCE:
            yield group
            group = []
    if group:
        yield group


class _WholeEpisodes:
    """Iterates over the whole episodes among all, and counts the others."""

    def __init__(self, episodes: Iterable[Rows]) -> None:
        self.whole = self.steps = self.unfinished = self.broken = 0
        self._episodes = episodes

    def __iter__(self) -> Iterator[Rows]:
        """Yield the rows of each whole episode; the last row closes it."""
        for rows in self._episodes:
            assert rows.steps is not None
            if not is_ended(rows):
                self.unfinished += 1
            elif rows.batch_size == 1 or not np.array_equal(rows.steps, np.arange(rows.batch_size)):
                self.broken += 1
            else:
                self.whole += 1
                self.steps += rows.batch_size - 1
                yield rows


def _unused_path(dataset_id: str) -> Path:
    """Return the directory of a new dataset, whose ID must be well-formed and free."""
    try:
        parse_dataset_id(dataset_id)
    except (TypeError, ValueError):  # TypeError: it has no version
        expected = "an ID that Minari accepts, such as 'cartpole/replay-v0'"
        raise InvalidArgumentError.of_field("dataset_id", expected, repr(dataset_id)) from None
    path = Path(get_dataset_path(dataset_id))
    if path.exists():
        raise InvalidArgumentError.of_field("dataset_id", "an ID of no local dataset", repr(dataset_id))
    return path


def _new_dataset(dataset_id: str, **options: Any) -> minari.MinariDataset:
    """Create a dataset without episodes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about details that the caller has not given
        return minari.create_dataset_from_buffers(dataset_id, [], **{"jpeg_encoding": False, **options})


def _checked_space(field: str, schema: Schema, name: str, space: gymnasium.Space[Any] | None) -> gymnasium.Space[Any]:
    """Check that columns and a space can hold each other's values, and return the space.

    If there is no space, derive it from the columns.
    """
    columns = _below(schema, name)
    if space is None:
        return _space_of(columns, name)
    wanted = columns_from_space(space, name)
    for each in columns | wanted:
        column, due = columns.get(each), wanted.get(each)
        if column is None or due is None or column.shape != due.shape or not _are_similar(column, due):
            expected = "no such column" if due is None else str(due)
            raise InvalidArgumentError.of_field(f"columns.{each}", f"{expected}, as in {field}", str(column or "none"))
    return space


def _are_similar(column: Column, other: Column) -> bool:
    """Whether a value may fit into both dtypes; ranges are checked for each value."""
    kinds = {_KINDS.get(each.dtype.kind, each.dtype.kind) for each in (column, other)}
    return len(kinds) == 1 or kinds == {"b", "i"}


def _space_of(columns: Mapping[str, Column], name: str) -> gymnasium.Space[Any]:
    """Return an unlimited space for a column, or for the nested columns below a name."""
    column = columns.get(name)
    if column is None:
        inner = dict.fromkeys(each.removeprefix(name + SEPARATOR).split(SEPARATOR)[0] for each in columns)
        names = {part: name + SEPARATOR + part for part in inner}
        return spaces.Dict({part: _space_of(_below(columns, each), each) for part, each in names.items()})
    dtype: Any = np.float32 if column.dtype.kind == "V" else column.dtype.type  # HDF5 and Arrow have no bfloat16
    if column.dtype.kind == "b":
        return spaces.Box(0, 1, column.shape, dtype)
    if column.dtype.kind in "fV":
        return spaces.Box(-np.inf, np.inf, column.shape, dtype)
    return spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, column.shape, dtype)


def _below(columns: Mapping[str, Column], name: str) -> dict[str, Column]:
    """Return the column with this name, or the columns nested below it."""
    return {each: column for each, column in columns.items() if each == name or each.startswith(name + SEPARATOR)}


def _values_in(space: gymnasium.Space[Any], name: str, rows: Rows) -> Any:
    """Convert columns of rows to values of a space: arrays ``dtype[n, *shape]``, nested like the space."""
    values = {
        each: np.asarray(checked_array(f"columns.{each}", column, rows[each]), column.dtype)
        for each, column in columns_from_space(space, name).items()
    }
    return unflatten_value(space, name, values)


def _info(values: Array, *, is_arrow: bool) -> Any:
    """Return a column for the infos. In its Arrow format, Minari cannot read an array of numbers, but a list.

    The list has NumPy's numbers, from which Arrow takes the dtype. It stores Python's as int64, up to 2^63.
    """
    return list(values) if is_arrow and values.ndim == 1 else values


def _last_is(rows: Rows, end: int) -> NDArray[np.bool_]:
    """Return bool[steps]: True only for the last step, and only if the episode ended like ``end``."""
    assert rows.ends is not None
    return np.append(np.zeros(rows.batch_size - 2, bool), rows.ends[-1] == end)


def _rows_of(episode: minari.EpisodeData, names: _Names, others: Iterable[str]) -> Rows:
    """Return the rows of an episode: its steps, and the row that closes it."""
    steps = len(episode.rewards)
    infos = chain.from_iterable(flatten_value(name, value).items() for name, value in (episode.infos or {}).items())
    of_infos = {name: value for name, value in infos if name in others}
    of_steps = {**flatten_value(names.action, episode.actions), names.reward: episode.rewards}
    columns = flatten_value(names.obs, episode.observations)
    ends = np.zeros(steps + 1, np.uint8)
    is_terminated = steps and bool(episode.terminations[-1])
    ends[-1] = replay_pb2.EPISODE_END_TERMINATED if is_terminated else replay_pb2.EPISODE_END_TRUNCATED
    return Rows(
        row_keys=np.zeros(steps + 1, np.int64),
        columns={
            **{name: _of_length(name, values, steps + 1) for name, values in {**columns, **of_infos}.items()},
            **{name: _closed(_of_length(name, values, steps)) for name, values in of_steps.items()},
        },
        priorities=np.full(steps + 1, np.nan),
        streams=np.zeros(steps + 1, np.uint64),
        episodes=np.full(steps + 1, episode.id, np.uint64),
        steps=np.arange(steps + 1),
        ends=ends,
    )


def _of_length(name: str, values: Any, length: int) -> Array:
    """Convert values to an array of this length."""
    array: Array = np.asarray(values)
    if len(array) != length:
        raise InvalidArgumentError.of_field(f"columns.{name}", f"{length} values in this episode", str(len(array)))
    return array


def _closed(values: Array) -> Array:
    """Append a zero, for the row that closes the episode."""
    return np.concatenate([values, np.zeros_like(values, shape=(1, *values.shape[1:]))])
