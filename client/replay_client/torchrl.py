"""A replay buffer for TorchRL whose rows and priorities are in a table of a replay server.

    from replay_client.torchrl import ServiceReplayBuffer

    buffer = ServiceReplayBuffer(client, "cartpole", capacity=100_000, batch_size=128)
    collector = Collector(env, policy, frames_per_batch=50, total_frames=50_000, replay_buffer=buffer)
    for _ in collector:
        data = buffer.sample()
        loss = loss_module(data)["loss"]
        ...
        buffer.update_tensordict_priority(data)

The first tensordict creates the table. Each of its keys becomes a column: ``("next", "reward")`` becomes
``next/reward``. Each element of a tensordict's batch becomes a row, so a batch of the size ``[envs, time]`` gives
``envs * time`` rows.

Collectors pickle the buffer to send it to their workers. Each worker then has its own connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from replay_proto.schema import SEPARATOR
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor

from replay_client._adapters import check_same_columns, columns_of
from replay_client._learning.tensors import Device, to_torch
from replay_client.batch import UpdateResult
from replay_client.errors import InvalidArgumentError, TableNotFoundError
from replay_client.results.stats import TableStats
from replay_client.sync.client import ReplayClient
from replay_client.sync.table import Table

__all__ = ["ServiceReplayBuffer"]

Key = str | tuple[str, ...]
"""A key of a tensordict, nested or not."""

_INDEX: Final = "index"
_WEIGHT: Final = "priority_weight"
"""Where TorchRL's losses look for importance-sampling weights."""


class ServiceReplayBuffer:
    """See the module. For use in one thread.

    It has the methods of TorchRL's `TensorDictReplayBuffer` that collectors, `ReplayBufferTrainer` and training loops
    call. It is not a subclass, because that class combines a storage, a sampler and a writer in this process. TorchRL
    does not check the type of a buffer, except in `OfflineToOnlineReplayBuffer` and in integrations of language models.
    Add transforms to the environment, or to the collector as ``postproc``.
    """

    _storage: Final = None  # tells collectors with several processes that there is no storage to initialize

    def __init__(
        self,
        client: ReplayClient,
        name: str,
        *,
        capacity: int,
        batch_size: int | None = None,
        beta: float = 0.4,
        priority_key: Key = "td_error",
        timeout_s: float | None = 0.0,
        device: Device = "cpu",
        **config: Any,
    ) -> None:
        """Use a table. If it does not exist, the first `extend` creates it.

        Args:
            client: client of the server.
            name: name of the table.
            capacity: maximum number of rows.
            batch_size: default batch size of `sample`.
            beta: exponent of the importance-sampling weights; can be changed later.
            priority_key: key from which `update_tensordict_priority` reads new priorities. If a tensordict passed to
                `extend` has this key, its values are the initial priorities of the rows.
            timeout_s: seconds that `sample` waits for rows, as for `Table.sample`.
            device: device of sampled tensordicts.
            **config: further arguments of `ReplayClient.create_table`, such as ``alpha`` or ``backend``.
        """
        self.client: Final = client
        """Client of the server."""
        self.name: Final = name
        """Name of the table."""
        self.batch_size: Final = batch_size
        """Default batch size of `sample`."""
        self.beta = beta
        """Exponent of the weights."""
        self.priority_key: Final = priority_key
        """Key of the priorities."""
        self._timeout_s = timeout_s
        self._device = device
        self._config = {"capacity": capacity, "if_exists": "open", **config}
        self._table: Table | None = None

    def extend(self, data: TensorDictBase) -> torch.Tensor:
        """Insert the elements of a tensordict as rows.

        Args:
            data: a tensordict of any batch size. The keys ``index`` and ``priority_weight`` are not stored, because
                `sample` sets them.

        Returns:
            Keys of the rows, int64[n].

        Raises:
            InvalidArgumentError: ``data`` is not a tensordict, a value cannot be stored, or keys, dtypes or shapes
                differ from those of the table. The error names the key; nothing was inserted.
            TableExistsError: the table exists with another config.
        """
        rows, priorities = self._rows_of(data)
        if self._table is None:
            self._table = self.client.create_table(self.name, columns=columns_of(rows), **self._config)
        check_same_columns(self._table.schema, rows)
        return torch.from_numpy(self._table.insert(rows, priorities=priorities))

    def add(self, data: TensorDictBase) -> torch.Tensor:
        """Insert one element or, when called by a collector, one step of each environment; see `extend`."""
        return self.extend(data)

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw rows by priority.

        Args:
            batch_size: number of rows; None: the buffer's `batch_size`.
            return_info: whether to return a pair: the tensordict, and a dict with ``index`` and ``priority_weight``.

        Returns:
            A tensordict with the keys of inserted tensordicts, and two more: ``index`` (int64[batch]), the keys of the
            rows, and ``priority_weight`` (float32[batch]), their importance-sampling weights.

        Raises:
            InvalidArgumentError: there is no batch size, or it is invalid.
            TableNotFoundError: no rows were ever inserted.
            ReplayError: as for `Table.sample`.
        """
        size = self.batch_size if batch_size is None else batch_size
        if size is None:
            raise InvalidArgumentError.of_field("batch_size", "a number, here or for the buffer", "none")
        batch = self._opened().sample(size, beta=self.beta, timeout_s=self._timeout_s)
        tensors = to_torch(batch, self._device)
        info = {_INDEX: torch.from_numpy(batch.row_keys).to(self._device), _WEIGHT: tensors.weights}
        data = TensorDict(dict(tensors.columns), batch_size=[size]).unflatten_keys(SEPARATOR).update(info)
        return (data, info) if return_info else data

    def update_tensordict_priority(self, data: TensorDictBase) -> UpdateResult:
        """Update the priorities of the rows of a sampled tensordict.

        The new priorities are in its key `priority_key`, where TorchRL's losses write TD errors.

        Raises:
            InvalidArgumentError: the tensordict has no ``index`` or no priorities, or they are invalid.
        """
        for key in (_INDEX, self.priority_key):
            if data.get(key, None) is None:
                raise InvalidArgumentError.of_field(
                    _name_of(key), "a key of the tensordict", f"only {list(data.keys())}"
                )
        return self.update_priority(data.get(_INDEX), data.get(self.priority_key))

    def update_priority(self, index: ArrayLike | torch.Tensor, priority: ArrayLike | torch.Tensor) -> UpdateResult:
        """Update priorities of rows.

        Args:
            index: int64[n], keys of rows from `sample` or `extend`.
            priority: absolute TD errors ``[n, ...]``. If a row has several, the largest is its priority.
        """
        return self._opened().update_priorities(torch.as_tensor(index), _largest(priority))

    def empty(self) -> None:
        """Remove all rows."""
        if self._existing() is not None:
            self._opened().reset()

    def stats(self) -> TableStats:
        """Fetch statistics of the table.

        Raises:
            TableNotFoundError: no rows were ever inserted.
        """
        return self._opened().stats()

    @property
    def write_count(self) -> int:
        """Number of rows ever inserted, by all processes."""
        table = self._existing()
        return 0 if table is None else table.describe().inserted

    def state_dict(self) -> dict[str, Any]:
        """Return an empty dict, because the rows are on the server; `ReplayClient.checkpoint` saves them."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing; see `state_dict`."""

    def __len__(self) -> int:
        """Number of live rows."""
        table = self._existing()
        return 0 if table is None else len(table)

    def __bool__(self) -> bool:
        return True  # even if it is empty

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Draw batches endlessly."""
        while True:
            yield self.sample()

    def __repr__(self) -> str:
        return f"<ServiceReplayBuffer of table {self.name!r} at {self.client.address}>"

    def _opened(self) -> Table:
        if self._table is None:
            self._table = self.client.table(self.name)
        return self._table

    def _existing(self) -> Table | None:
        try:
            return self._opened()
        except TableNotFoundError:
            return None

    def _rows_of(self, data: TensorDictBase) -> tuple[dict[str, NDArray[Any]], NDArray[Any] | None]:
        """Convert a tensordict to columns, ``[n, *shape]`` by name, and priorities, if it has any."""
        if not isinstance(data, TensorDictBase):
            raise InvalidArgumentError.of_field("data", "a tensordict", type(data).__name__)
        if not data.batch_size.numel() or data.is_empty():
            got = f"one with keys {[*data.keys()]} and batch size {[*data.batch_size]}"
            raise InvalidArgumentError.of_field("data", "a tensordict with values and elements", got)
        flat = data.reshape(-1) if data.batch_dims else data.unsqueeze(0)
        leaves = flat.items(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)
        rows = {_name_of(key): _as_array(key, value) for key, value in leaves}
        for own in (_INDEX, _WEIGHT):
            rows.pop(own, None)
        priorities = rows.pop(_name_of(self.priority_key), None)
        return rows, None if priorities is None else _largest(priorities)


def _name_of(key: Key) -> str:
    """Return the name of the column for a key, which must not contain the separator of nested names."""
    parts = (key,) if isinstance(key, str) else key
    for part in parts:
        if SEPARATOR in part:
            raise InvalidArgumentError.of_field(f"data[{key!r}]", f"a key without {SEPARATOR!r}", repr(part))
    return SEPARATOR.join(parts)


def _as_array(key: Key, value: Any) -> NDArray[Any]:
    expected = "a tensor of a dtype that NumPy has, too"
    if not isinstance(value, torch.Tensor):
        raise InvalidArgumentError.of_field(f"data[{key!r}]", expected, type(value).__name__)
    try:
        return value.detach().cpu().numpy()
    except TypeError:
        raise InvalidArgumentError.of_field(f"data[{key!r}]", expected, str(value.dtype)) from None


def _largest(priorities: ArrayLike | torch.Tensor) -> NDArray[Any]:
    """Return the largest priority of each row."""
    values = priorities.detach().cpu() if isinstance(priorities, torch.Tensor) else priorities
    rows = np.atleast_1d(np.asarray(values))
    return np.asarray(rows.max(axis=tuple(range(1, rows.ndim))))
