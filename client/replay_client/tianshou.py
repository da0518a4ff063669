"""A replay buffer for Tianshou, which stores rows and priorities in a table of a replay server.

    from replay_client.tianshou import ServiceReplayBuffer

    algorithm = DQN(..., gamma=0.99, n_step_return_horizon=3)
    buffer = ServiceReplayBuffer(client, "cartpole", env_num=8, capacity=100_000, gamma=0.99, n_step=3)
    collector = Collector(algorithm, envs, buffer)

The first batch that a collector adds creates the table. It is a table of steps with the columns of ``obs``,
``act`` and ``rew``, and stores each observation once. ``info`` and ``policy`` are not stored.

Tianshou's algorithms compute n-step returns by following n steps through a buffer in memory. Here, sampled transitions
already contain the results: ``rew`` is the n-step return, and ``obs_next`` the observation up to n steps later. To make
the algorithms compute the same targets, the buffer presents each transition as n steps. The first step has the return
as its reward, and the others have the reward 0. One step is marked done: the step that ends the episode or, if none of
them does, the last one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from replay_proto.schema import SEPARATOR, Column, Schema
from replay_proto.steps import Derived, Discount, Next, Return, Transitions
from tianshou.data import Batch, ReplayBufferManager

from replay_client import batch as drawn_batch
from replay_client._adapters import are_same, columns_of
from replay_client._rows.checks import as_array, checked_flags, checked_rows, nested_items
from replay_client.errors import InvalidArgumentError, ReplayError, TableNotFoundError
from replay_client.results.stats import TableStats
from replay_client.sync.client import ReplayClient
from replay_client.sync.table import Table
from replay_client.sync.writer import Writer

__all__ = ["ServiceReplayBuffer"]

_STEP_BITS: Final = 40
"""`add` returns indices ``environment + 1 << _STEP_BITS | step``, which collectors use for their statistics."""


class _Episode:
    """The current episode of an environment."""

    def __init__(self, first_step: int) -> None:
        self.first_step = first_step
        self.actions: list[Any] = []
        self.rewards: list[Any] = []
        self.final: dict[str, NDArray[Any]] = {}  # observation after the last step
        self.is_over = False


class ServiceReplayBuffer(ReplayBufferManager):  # type: ignore[misc]  # Tianshou is optional
    """See the module. For collectors and off-policy algorithms, in one thread.

    It is a subclass of `ReplayBufferManager`, because collectors of several environments require one. It does not use
    the storage of that class. Methods that would need the whole buffer in memory raise `NotImplementedError`.
    """

    _meta = Batch()  # empty, because ReplayBuffer looks up unknown attributes here

    def __init__(
        self,
        client: ReplayClient,
        name: str,
        *,
        env_num: int,
        capacity: int,
        n_step: int = 1,
        gamma: float = 0.99,
        beta: float = 0.4,
        timeout_s: float | None = 0.0,
        **config: Any,
    ) -> None:
        """Use a table. If it does not exist, the first `add` creates it.

        Args:
            client: client of the server.
            name: name of the table.
            env_num: number of environments of the collector.
            capacity: maximum number of rows. Each step takes a row, and each finished episode one more.
            n_step: the algorithm's ``n_step_return_horizon``.
            gamma: the algorithm's ``gamma``.
            beta: exponent of the importance-sampling weights; see `set_beta`.
            timeout_s: seconds that `sample` waits for rows, as for `Table.sample`.
            **config: further arguments of `ReplayClient.create_table`, such as ``alpha`` or ``backend``.
        """
        self.client: Final = client
        """Client of the server."""
        self.name: Final = name
        """Name of the table."""
        self.buffer_num: Final = env_num
        """Number of environments."""
        self.maxsize: Final = capacity
        """Maximum number of rows."""
        self._item = Transitions(n_step=n_step, gamma=gamma)
        self._beta = beta
        self._timeout_s = timeout_s
        self._config = {"capacity": capacity, "if_exists": "open", "steps": self._item, **config}
        self._table: Table | None = None
        self._writer: Writer | None = None
        self._has_unsent = False
        self._has_null = False
        self._episodes = [_Episode(0) for _ in range(env_num)]
        self._drawn: drawn_batch.Batch | None = None
        self._followed = 0

    def add(
        self, batch: Any, buffer_ids: NDArray[np.int64] | Sequence[int] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
        """Add one step of each of the given environments.

        If the collector has reset an environment in the middle of an episode, that episode is truncated.

        Args:
            batch: the steps, with ``obs``, ``act``, ``rew``, ``terminated``, ``truncated`` and ``obs_next``.
            buffer_ids: int64[n]: indices of the environments; None: all.

        Returns:
            Four arrays with one value per environment: the index of the step, the return of the episode, its length,
            and the index of its first step. Return and length are 0 unless the step ends the episode.

        Raises:
            InvalidArgumentError: values cannot be stored, or do not match the table's columns. The error names the key;
                nothing was added.
            TableExistsError: the table exists with another config.
            ReplayError: earlier steps could not be sent.
        """
        rows = {**_flat("obs", batch.obs), **_flat("act", batch.act), "rew": np.asarray(batch.rew, np.float64)}
        finals = _flat("obs", batch.obs_next)
        streams = self._streams_of(buffer_ids)
        ends = np.stack([_flags(name, batch[name], len(streams)) for name in ("terminated", "truncated")], axis=1)
        table, writer = self._opened_for_writing(rows)
        rows = _checked(table.schema, rows, len(streams), is_partial=False)
        finals = _checked(table.schema, finals, len(streams), is_partial=True)
        self._has_null |= any(np.isnan(values).any() for values in rows.values() if values.dtype.kind == "f")
        added = [
            self._append(
                writer,
                stream,
                {name: values[place] for name, values in rows.items()},
                {name: values[place] for name, values in finals.items()},
                *ends[place].tolist(),
            )
            for place, stream in enumerate(streams)
        ]
        self._has_unsent = True
        indices, returns, lengths, starts = zip(*added, strict=True)
        return np.array(indices), np.array(returns), np.array(lengths), np.array(starts)

    def sample(self, batch_size: int | None) -> tuple[Any, NDArray[np.int64]]:
        """Draw transitions by priority.

        Returns:
            A batch with ``obs``, ``act``, ``rew`` (the n-step return), ``obs_next`` (up to n steps later),
            ``terminated`` and ``weight``; and the indices of its transitions, which are valid until the next call.

        Raises:
            InvalidArgumentError: for None or a number below 1, with which Tianshou asks for the whole buffer.
            ReplayError: as for `Table.sample`.
        """
        indices = self.sample_indices(batch_size)
        return self[indices], indices

    def sample_indices(self, batch_size: int | None) -> NDArray[np.int64]:
        """Draw transitions; see `sample`."""
        if batch_size is None or batch_size < 1:
            expected = "at least 1; a table is not read as a whole"
            raise InvalidArgumentError.of_field("batch_size", expected, repr(batch_size))
        self._drawn = self._with_all_sent().sample(batch_size, beta=self._beta, timeout_s=self._timeout_s)
        self._followed = 0
        return np.arange(batch_size)

    def __getitem__(self, index: Any) -> Any:
        """Return transitions by indices from `sample` or `next`, or steps of a finished episode by indices from `add`.

        Steps have only ``act`` and ``rew``, because collectors use them only for statistics.
        """
        indices = np.asarray(index)
        if indices.size and indices.min() >> _STEP_BITS:
            return self._steps_at(indices)
        drawn = self._last_drawn()
        places = indices % drawn.batch_size
        columns = {name: column[places] for name, column in drawn.items()}
        return Batch(
            obs=_nested(columns, "obs"),
            act=_nested(columns, "act"),
            rew=columns["return"],
            obs_next=_nested(columns, "obs_next"),
            terminated=columns["discount"] == 0,
            weight=drawn.weights[places],
            info=Batch(),
            policy=Batch(),
        )

    def next(self, index: ArrayLike) -> NDArray[np.int64]:
        """Return the index of the step that follows each given step in its sampled transition."""
        self._followed += 1
        return np.asarray(index) + self._last_drawn().batch_size

    @property
    def rew(self) -> NDArray[Any]:
        """float64[n_step * batch, ...]: the reward of each step, by indices from `sample` and `next`; see the module.

        Raises:
            InvalidArgumentError: the algorithm has another ``n_step_return_horizon``. `done` and `terminated` raise the
                same error.
        """
        returns = self._followed_batch()["return"]
        return np.concatenate([returns, np.zeros(((self._item.n_step - 1) * len(returns), *returns.shape[1:]))])

    @property
    def done(self) -> NDArray[np.bool_]:
        """bool[n_step * batch]: whether each step is the last one of its transition, by the same indices as `rew`."""
        discounts = self._followed_batch()["discount"]
        ends = np.zeros((self._item.n_step, len(discounts)), bool)
        ends[_steps_spanned(discounts, self._item) - 1, np.arange(len(discounts))] = True
        return ends.reshape(-1)

    @property
    def terminated(self) -> NDArray[np.bool_]:
        """bool[n_step * batch]: whether the transition leads to a terminal state, by the same indices as `rew`."""
        return np.tile(self._followed_batch()["discount"] == 0, self._item.n_step)

    def unfinished_index(self) -> NDArray[np.int64]:
        """Return no indices, because a transition can be drawn only when all of its steps have arrived."""
        return np.array([], np.int64)

    def update_weight(self, index: ArrayLike, new_weight: Any) -> None:
        """Update priorities of the last batch, for indices int64[n] from `sample`.

        The weights are TD errors float[n], an array or a tensor; their absolute values are the priorities.
        """
        keys = self._last_drawn().row_keys[np.asarray(index)]
        self._opened().update_priorities(keys, abs(as_array(new_weight)))

    def set_beta(self, beta: float) -> None:
        """Set the exponent of the weights."""
        self._beta = beta

    def get_buffer_indices(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the indices of an episode's steps.

        Args:
            start: index of the first step, as returned by `add`.
            stop: index after that of the last step.
        """
        return np.arange(start, stop)

    def hasnull(self) -> bool:
        """Whether a NaN was added since the last `reset`."""
        return self._has_null

    def reset(self, keep_statistics: bool = False) -> None:
        """Remove all rows from the table, including those of other processes.

        ``collector.reset()`` calls this; to keep the rows, use ``collector.reset(reset_buffer=False)``.
        """
        del keep_statistics
        for stream, episode in enumerate(self._episodes):
            if self._writer is not None:
                self._writer[stream].abandon_episode()
            self._episodes[stream] = _Episode(episode.first_step + len(episode.rewards))
        if self._exists():
            self._with_all_sent().reset()
        self._has_null = False

    def stats(self) -> TableStats:
        """Fetch statistics of the table.

        Raises:
            TableNotFoundError: nothing was ever added.
        """
        return self._with_all_sent().stats()

    def close(self) -> None:
        """Send all remaining steps, and close the writer; the next `add` opens another one."""
        if self._writer is not None:
            self._writer.close()
            self._writer, self._has_unsent = None, False

    def __len__(self) -> int:
        """Number of live rows: one per step, and one per finished episode."""
        return len(self._with_all_sent()) if self._exists() else 0

    def __bool__(self) -> bool:
        return True  # even if it is empty

    def __repr__(self) -> str:
        return f"<ServiceReplayBuffer of table {self.name!r} at {self.client.address}, {self.buffer_num} environments>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("this buffer cannot be pickled or copied; create one with the same arguments there")

    def _unsupported(self, *_: object, **__: object) -> NoReturn:
        raise NotImplementedError("the rows are on a replay server; use the table: client.table(buffer.name)")

    prev = update = set_batch = get = set_array_at_key = isnull = dropnull = _unsupported
    save_hdf5 = load_hdf5 = from_data = _unsupported

    def _streams_of(self, buffer_ids: NDArray[np.int64] | Sequence[int] | None) -> list[int]:
        """Return the streams of environments, which must be known, and given only once."""
        if buffer_ids is None:
            return list(range(self.buffer_num))
        streams: list[int] = np.asarray(buffer_ids).tolist()
        if not streams or len({*streams}) < len(streams) or not {*streams} <= {*range(self.buffer_num)}:
            expected = f"different numbers from 0 to {self.buffer_num - 1}"
            raise InvalidArgumentError.of_field("buffer_ids", expected, str(streams))
        return streams

    def _append(
        self,
        writer: Writer,
        stream: int,
        row: dict[str, Any],
        final: dict[str, NDArray[Any]],
        is_terminated: bool,
        is_truncated: bool,
    ) -> tuple[int, Any, int, int]:
        episode = self._episodes[stream]
        was_reset = not are_same(row, episode.final)
        if was_reset and not episode.is_over:
            writer[stream].end_episode(episode.final)
        if was_reset or episode.is_over:
            episode = self._episodes[stream] = _Episode(episode.first_step + len(episode.rewards))
        is_added = False
        try:
            writer[stream].append(row)
            is_added = True
            if is_terminated or is_truncated:
                writer[stream].end_episode(final, terminated=is_terminated)
            episode.actions.append(row.get("act"))
            episode.rewards.append(row["rew"])
            episode.final = {name: values.copy() for name, values in final.items()}
            episode.is_over = is_terminated or is_truncated
        except BaseException as error:
            if is_added or not isinstance(error, ReplayError):  # such as Ctrl-C: the end of the step may be missing
                writer[stream].abandon_episode()
                self._episodes[stream] = _Episode(episode.first_step + len(episode.rewards))
            raise
        first = (stream + 1 << _STEP_BITS) + episode.first_step
        length = len(episode.rewards)
        if not episode.is_over:
            return first + length - 1, np.zeros_like(row["rew"]), 0, first
        return first + length - 1, sum(episode.rewards), length, first

    def _steps_at(self, indices: NDArray[np.int64]) -> Any:
        episode = self._episodes[int(indices[0] >> _STEP_BITS) - 1]
        places = (indices & ((1 << _STEP_BITS) - 1)) - episode.first_step
        return Batch(
            act=[episode.actions[place] for place in places.tolist()],
            rew=np.array([episode.rewards[place] for place in places.tolist()]),
        )

    def _last_drawn(self) -> drawn_batch.Batch:
        if self._drawn is None:
            raise InvalidArgumentError.of_field("index", "one of sample()", "none was sampled yet")
        return self._drawn

    def _followed_batch(self) -> drawn_batch.Batch:
        """Return the last batch; raise an error unless the algorithm has followed its transitions for n steps."""
        if self._followed != self._item.n_step - 1:
            expected = f"{self._item.n_step}, the buffer's n_step"
            raise InvalidArgumentError.of_field("n_step_return_horizon", expected, str(self._followed + 1))
        return self._last_drawn()

    def _opened(self) -> Table:
        if self._table is None:
            table = self.client.table(self.name)
            item = None if table.steps is None else table.steps.item
            if item != self._item:
                raise InvalidArgumentError.of_field(
                    "n_step and gamma", f"those of table {self.name!r}, {item}", f"{self._item}"
                )
            self._table = table
        return self._table

    def _with_all_sent(self) -> Table:
        """Return the table, after all steps added to this buffer have been stored."""
        if self._writer is not None and self._has_unsent:
            self._writer.flush()
            self._has_unsent = False
        return self._opened()

    def _exists(self) -> bool:
        try:
            self._opened()
        except TableNotFoundError:
            return False
        return True

    def _opened_for_writing(self, rows: dict[str, NDArray[Any]]) -> tuple[Table, Writer]:
        if self._writer is None:
            self._table = self.client.create_table(self.name, columns=_columns(rows), **self._config)
            self._writer = self._table.writer(streams=self.buffer_num)
        return self._opened(), self._writer


def _columns(rows: dict[str, NDArray[Any]]) -> dict[str, Column | Derived]:
    """Return the stored and derived columns of the table."""
    stored = columns_of(rows)
    reward = stored.pop("rew")
    derived: dict[str, Column | Derived] = {
        name.replace("obs", "obs_next", 1): Next(name) for name in stored if name.partition(SEPARATOR)[0] == "obs"
    }
    return {
        **stored,
        "rew": Column(reward.dtype, reward.shape, sampled=False),
        **derived,
        "return": Return("rew"),
        "discount": Discount(),
    }


def _checked(
    schema: Schema, rows: dict[str, NDArray[Any]], row_count: int, *, is_partial: bool
) -> dict[str, NDArray[Any]]:
    """Check rows, and cast them to the dtypes of the columns, so that they can be compared bit by bit."""
    checked, found = checked_rows(schema, rows, is_partial=is_partial)
    if found != row_count:
        raise InvalidArgumentError.of_field("columns", f"{row_count} rows, one for each environment", str(found))
    return {name: np.asarray(values, schema[name].dtype) for name, values in checked.items()}


def _flags(name: str, value: Any, row_count: int) -> NDArray[Any]:
    return checked_flags(name, value, (row_count,), meaning=", one for each environment")


def _flat(name: str, value: Any) -> dict[str, NDArray[Any]]:
    """Flatten a value, which may be nested, to arrays by column name."""
    if not isinstance(value, Batch):
        return {name: as_array(value)}
    flat: dict[str, NDArray[Any]] = {}
    for part_name, part in nested_items(name, {key: value[key] for key in value.get_keys()}):
        flat.update(_flat(part_name, part))
    return flat


def _nested(columns: dict[str, NDArray[Any]], name: str) -> Any:
    """Return the value of a column, or of all columns nested under a name."""
    if name in columns:
        return columns[name]
    prefix = name + SEPARATOR
    parts = {path.removeprefix(prefix).partition(SEPARATOR)[0] for path in columns if path.startswith(prefix)}
    return Batch({part: _nested(columns, prefix + part) for part in parts})


def _steps_spanned(discounts: NDArray[np.float32], item: Transitions) -> NDArray[np.int64]:
    """Return the number of steps k that each transition spans, int64[batch], computed from its discount ``gamma**k``.

    If gamma is 0 or 1, or the discount is 0, k is unknown, and n is returned. Targets then do not depend on k.
    """
    spanned = np.full(len(discounts), item.n_step)
    if 0.0 < item.gamma < 1.0:
        cut = discounts > 0
        spanned[cut] = np.rint(np.log(discounts[cut]) / math.log(item.gamma)).astype(np.int64)
    return spanned
