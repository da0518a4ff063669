"""A replay buffer for Stable-Baselines3 that keeps its steps in a table of steps on a server."""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final, cast

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from replay_proto.errors import FieldError
from replay_proto.schema import SEPARATOR, Column
from replay_proto.steps import Derived, Discount, Item, Next, Return, Steps, Transitions
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.preprocessing import get_action_dim, get_obs_shape
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from replay_client._adapters import are_same, same_rows
from replay_client._learning.prefetch import FEWEST
from replay_client._rows.checks import checked_array, checked_flags, described
from replay_client.batch import Batch
from replay_client.draws import DEFAULT_BETA, checked_beta, checked_count
from replay_client.errors import InvalidArgumentError, ReplayError, TableEmptyError
from replay_client.security import Tls, token_from_environment
from replay_client.sync.client import ReplayClient
from replay_client.sync.sampler import Sampler
from replay_client.sync.table import Table
from replay_client.sync.writer import GIVE_UP_S, Writer

log = logging.getLogger(__name__)

OBS: Final = "obs"
"""Column of observations; those of a `Dict` space are ``obs/key``."""
_NEXT_OBS: Final = "next_obs"
_TIMEOUT: Final = "TimeLimit.truncated"
_FINAL_OBS: Final = ("final_obs", "final_observation")
"""What infos of Gymnasium's vector environments have if an environment is reset in the step that ends an episode."""
_OF_HER: Final = {"copy_info_dict", "env", "goal_selection_strategy", "n_sampled_goal"}
_AHEAD: Final = 128
"""Batches in flight if priorities do not matter. Each message wakes up the server, which takes a core from the learner
for a moment, so one message requests many batches."""
_AHEAD_BYTES: Final = 1 << 24
"""Maximum bytes of these batches, unless there are only a few."""
_BLOCK_DELAY_S: Final = 1.0
"""Seconds for which steps are collected. Each message wakes up threads and the server, which disturbs the learner."""
_BLOCKS_IN_LAG: Final = 4
"""A block has at most `max_lag_steps` divided by this number of steps, so that batches miss few of them."""
_MAX_LAG_STEPS: Final = 250
"""Default of the newest steps that a batch may miss: more than an algorithm with a batch for each step adds while its
batches are in flight. If an algorithm alternates between many steps and many batches, the batches that it requested
before these steps are older, so they are not used."""
_MAX_LAG_VECTOR_STEPS: Final = 8
"""The same in steps of all environments, if there are many: enough for a few batches in flight."""
_MEASURED_BATCHES: Final = 256
"""After each such number of batches, the number of batches in flight follows the steps between two batches."""


class ServiceSamples(ReplayBufferSamples):
    """SB3's samples, with weights and keys for prioritized algorithms."""

    weights: torch.Tensor
    """float32[batch]: importance-sampling weights."""
    row_keys: NDArray[np.int64]
    """int64[batch]: keys of the drawn steps, which `ServiceReplayBuffer.update_priorities` uses."""


class ServiceReplayBuffer(ReplayBuffer):
    """A replay buffer for all off-policy algorithms of SB3, which stores its steps in a table on a server.

    The first `add` or `sample` connects to the server, and creates the table or opens the existing one with its rows.
    So a saved model can be loaded, and can act, without a server. Added steps are sent in the background, and batches
    are requested in advance. So a batch may miss the newest steps, but at most `max_lag_steps`.
    The last `n_steps` steps of a running episode cannot be drawn yet. If the table has no other steps, `sample`
    truncates the running episodes, so that their steps can be drawn.
    """

    _finish: weakref.finalize[[Writer], ServiceReplayBuffer]

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        address: str | ReplayClient,
        table: str,
        n_steps: int = 1,
        gamma: float | None = None,
        beta: float = DEFAULT_BETA,
        max_lag_steps: int | None = None,
        prefetch: int | None = None,
        seed: int | None = None,
        autoreset_mode: AutoresetMode | None = None,
        backend: str = "sum_tree",
        alpha: float | None = None,
        epsilon: float | None = None,
        max_priority: float | None = None,
        **unknown: Any,
    ) -> None:
        """Called by SB3; ``replay_buffer_kwargs`` has the keyword-only arguments.

        Args:
            buffer_size: capacity of the table in steps, of all environments together.
            observation_space: a Box, Discrete, MultiDiscrete or MultiBinary space, or a Dict of them.
            action_space: a Box, Discrete, MultiDiscrete or MultiBinary space.
            device: device of the samples.
            n_envs: number of environments.
            optimize_memory_usage: must be False: a table of steps stores each observation once anyway.
            handle_timeout_termination: whether targets bootstrap from the final observation of an episode that a time
                limit has truncated.
            address: address of the server, or a client connected to it. With an address, token and TLS files come from
                ``REPLAY_TOKEN`` and ``REPLAY_TLS...``. They are not arguments, because SB3 saves arguments with models.
            table: name of the table.
            n_steps: number of steps in a return. `PrioritizedDQN` and `PrioritizedQRDQN` pass their own value. For
                other algorithms, put it into ``replay_buffer_kwargs``.
            gamma: the algorithm's discount factor. Required if `n_steps` is above 1, because batches then contain
                n-step returns. `PrioritizedDQN` and `PrioritizedQRDQN` pass their own value.
            beta: initial value of `beta`, the exponent of the importance-sampling weights.
            max_lag_steps: how many of the newest steps, of all environments together, a batch may miss. `sample` waits
                only to keep this limit. With 0, a batch is drawn from all added steps. None means 250, or with more
                than 31 environments 8 steps of each.
            prefetch: batches in flight. A batch misses the priorities of the ``prefetch - 1`` batches before it. None
                means 2. But if priorities do not matter (``backend="uniform"`` or ``alpha=0``), it means up to 128
                small batches, because one message then requests many, and fewer if there are many steps between two
                batches. If `max_lag_steps` is 0, it means 1; then each batch reflects all earlier steps and priorities,
                and runs with the same seeds give the same results.
            seed: seed of the table's draws, if the table is new.
            autoreset_mode: mode of the Gymnasium vector environment whose steps `add` gets. None: with infos that are a
                mapping without final observations, a step from the final observation to another one, without a reward,
                counts as one that only resets. Give the mode if a wrapper changes rewards, or if an episode may begin
                with the final observation of the last one. SB3's own environments never make such steps.
            backend: ``"sum_tree"``, ``"rank"`` or ``"uniform"``.
            alpha: priority exponent; see `ReplayClient.create_table`.
            epsilon: added to each priority of a ``"sum_tree"``.
            max_priority: limit of the priorities of a ``"sum_tree"``.
            **unknown: any other argument is an error.

        Raises:
            InvalidArgumentError: a table does not support an option or a space; the message names it.
            TypeError: an argument is unknown.
        """
        _refuse(unknown)
        if optimize_memory_usage:
            expected = "False, because a table of steps stores each observation once anyway"
            raise InvalidArgumentError.of_field("optimize_memory_usage", expected, "True")
        if not isinstance(address, str | ReplayClient):
            raise InvalidArgumentError.of_field("address", "host:port, or a ReplayClient", repr(address))
        if backend == "fifo":
            raise InvalidArgumentError.of_field("backend", "'sum_tree', 'rank' or 'uniform'", repr(backend))
        capacity, streams = checked_count("buffer_size", buffer_size), checked_count("n_envs", n_envs)
        columns = _space_columns("observation_space", OBS, observation_space)
        columns |= _space_columns("action_space", "action", action_space)
        super(ReplayBuffer, self).__init__(capacity, observation_space, action_space, device, n_envs=streams)
        self.buffer_size = max(capacity // streams, 1)  # per environment, as in SB3
        self.optimize_memory_usage = False
        self.handle_timeout_termination = handle_timeout_termination
        self.n_steps = checked_count("n_steps", n_steps)
        if gamma is None and self.n_steps > 1:
            expected = f"that of the algorithm, for returns over {n_steps} steps"
            raise InvalidArgumentError.of_field("gamma", expected, "None")
        self._beta = checked_beta(beta)
        usual_lag = max(_MAX_LAG_STEPS, _MAX_LAG_VECTOR_STEPS * streams)
        self._max_lag_steps = (
            usual_lag if max_lag_steps is None else checked_count("max_lag_steps", max_lag_steps, least=0)
        )
        self._prefetch = None if prefetch is None else checked_count("prefetch", prefetch)
        self._is_uniform = backend == "uniform" or alpha == 0
        self._autoreset_mode = autoreset_mode
        self._observed = [name for name in columns if name != "action"]
        given = {**columns, "reward": Column("float32"), "done": Column("bool")}
        self._arguments = {
            name: (column, np.dtype(column.dtype.name), (streams, *column.shape)) for name, column in given.items()
        }
        self._columns, self._item = self._layout(columns, 1.0 if gamma is None else gamma)
        Steps.of(self._columns, self._item)  # raises for invalid names, dtypes and numbers
        self._address = address
        self._config: dict[str, Any] = {
            "name": table,
            "backend": backend,
            "seed": seed,
            "alpha": alpha,
            "epsilon": epsilon,
            "max_priority": max_priority,
        }
        self._going_on = np.zeros(streams, bool)  # which environments have a running episode
        self._resets_next: NDArray[np.bool_] | None = None  # which environments may only reset in their next step
        self._tells_skipped = True
        self._final: dict[str, NDArray[Any]] = {}  # observations after the last step, by column: [n_envs, *shape]
        self._sampler: Sampler | None = None
        self._batch_size = 0  # batch size of the sampler
        self._batches = 0  # used since the number of batches in flight was chosen
        self._added_before = 0  # rows added until then
        self._stored: deque[int] = deque()  # rows stored when each batch in flight was requested, oldest batch first

    def _layout(self, columns: Mapping[str, Column], gamma: float) -> tuple[dict[str, Column | Derived], Item]:
        """Return all columns of the table, and what it draws; ``columns`` has those of observations and actions."""
        layout: dict[str, Column | Derived] = {
            **columns,
            "reward": Column("float32", sampled=self.n_steps == 1),
            **{next_column(name): Next(name) for name in self._observed},
            **({} if self.n_steps == 1 else {"n_return": Return("reward")}),
            "discount": Discount(),
        }
        return layout, Transitions(n_step=self.n_steps, gamma=gamma)

    @cached_property
    def table(self) -> Table:
        """The table. The first use connects to the server, and creates or opens the table."""
        client = self._address
        if isinstance(client, str):
            client = ReplayClient(client, token=token_from_environment(), tls=Tls.from_environment())
        capacity = self.buffer_size * self.n_envs
        return client.create_table(columns=self._columns, capacity=capacity, steps=self._item, **self._config)

    @cached_property
    def _writer(self) -> Writer:
        rows = self._block_rows if self._max_lag_steps else None
        writer = self.table.writer(streams=self.n_envs, block_rows=rows, min_delay_s=_BLOCK_DELAY_S)
        self._finish = weakref.finalize(self, _give_up, writer)
        return writer

    @property
    def _block_rows(self) -> int:
        return max(self.n_envs, self._max_lag_steps // _BLOCKS_IN_LAG)

    @property
    def beta(self) -> float:
        """Exponent of the importance-sampling weights (Schaul et al. 2016, section 3.4); can be changed."""
        return self._beta

    @beta.setter
    def beta(self, beta: float) -> None:
        self._beta = checked_beta(beta)

    def size(self) -> int:
        """Number of live rows per environment, including the closing rows of episodes."""
        return len(self.table) // self.n_envs

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: NDArray[Any],
        reward: NDArray[Any],
        done: NDArray[Any],
        infos: list[dict[str, Any]] | Mapping[str, Any],
    ) -> None:
        """Add one step of each environment.

        If an environment's ``obs`` differs from the ``next_obs`` of its last step, its episode was interrupted. The
        episode is then stored as truncated.

        Gymnasium's vector environments in the mode ``NEXT_STEP`` reset in the step after the end of an episode, from
        the final observation to the first one of the next episode. Such a step is not stored; the log says so once.

        Args:
            obs: observations before the step, ``[n_envs, *shape]``, or a dict of such arrays.
            next_obs: observations after the step, in the same form; where an episode ends, the final observation.
            action: actions ``[n_envs, *shape]``.
            reward: rewards, float[n_envs].
            done: bool[n_envs]: whether the step ends the episode. A time limit ends it, too.
            infos: the infos of the environments: a list with a mapping for each, or a mapping of arrays, as of
                Gymnasium's vector environments. ``TimeLimit.truncated`` marks episodes ended by a time limit. Ignored
                if `handle_timeout_termination` is False.

        Raises:
            InvalidArgumentError: an argument does not match the spaces or the number of environments, or a mapping of
                arrays does not say which of the ended episodes were truncated. Nothing was added.
            ReplayError: the steps could not be sent.
        """
        before, after = self._observations("obs", obs), self._observations("next_obs", next_obs)
        rows = {**before, "action": self._checked("action", action), "reward": self._checked("reward", reward)}
        rows |= self._more_columns(infos)
        is_done = self._checked("done", done)
        timeouts = self._timeouts(infos, is_done)
        is_over = is_done if timeouts is None else is_done | timeouts
        if not are_same(before, self._final):  # the usual case, checked quickly
            self._end(self._going_on & ~same_rows(before, self._final, self.n_envs))
        self._check_lengths()
        where = None
        if self._resets_next is not None:
            where = self._are_steps(before, rows["reward"], is_over, self._resets_next)
        is_added = False
        try:
            if self.n_envs > 1:
                self._writer.append_all(rows, where=where)
            elif where is None or where[0]:  # SB3's usual case; a single row costs a fraction of a vector of one row
                self._writer.append({name: values[0] for name, values in rows.items()})
            is_added = True
            if where is None:
                self._going_on.fill(True)
            else:
                self._going_on |= where
            self._final = {name: values.copy() for name, values in after.items()}
            ends = any(is_over.tolist())  # faster than numpy's for a few environments
            if ends:
                self._end(is_over, is_done if timeouts is None else is_done & ~timeouts)
        except BaseException as error:
            if is_added or not isinstance(error, ReplayError):  # such as Ctrl-C: the end of the step may be missing
                self._abandon()
            raise
        self._resets_next = is_over.copy() if ends and self._may_reset_next(infos) else None
        self.pos = (self.pos + 1) % self.buffer_size
        self.full = self.full or self.pos == 0

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ServiceSamples:
        """Draw steps by priority.

        Args:
            batch_size: number of steps.
            env: normalizes observations and rewards with its current statistics. An n-step return is scaled like a
                reward, and clipped to the largest return that n clipped rewards can have.

        Returns:
            Samples on the device. If `n_steps` is 1, ``discounts`` is None, as in SB3.

        Raises:
            TableEmptyError: the table has no steps.
            ReplayError: the server could not be reached, or refused the request.
        """
        batch = self._drawn(batch_size)
        return self._samples(batch, batch, env)

    def _samples(self, columns: Mapping[str, Any], batch: Batch, env: VecNormalize | None) -> ServiceSamples:
        """Make samples of transitions; ``columns`` has their values ``[batch, *shape]``, ``batch`` weights and keys."""
        ends = columns["discount"] == 0.0
        discounts = None if self.n_steps == 1 else self._tensor(columns["discount"][:, None])
        samples = ServiceSamples(
            observations=self._normalized(columns, OBS, env),
            actions=self._tensor(columns["action"]),
            next_observations=self._normalized(columns, _NEXT_OBS, env),
            dones=self._tensor(ends[:, None].astype(np.float32)),
            rewards=self._tensor(self._rewards(columns, env)[:, None]),
            discounts=discounts,
        )
        samples.weights = self._tensor(batch.weights)
        samples.row_keys = batch.row_keys
        return samples

    def update_priorities(self, samples: ServiceSamples, td_errors: torch.Tensor) -> None:
        """Update the priorities of samples.

        The next call of `sample` sends the update. After `reset` or `close`, this call sends it immediately.

        Args:
            samples: samples returned by `sample`.
            td_errors: float[batch] or float[batch, 1]; their absolute values are the priorities.

        Raises:
            InvalidArgumentError: a TD error is not finite, or the number of TD errors differs from that of samples.
        """
        target = self._sampler or self.table
        target.update_priorities(samples.row_keys, td_errors.detach().abs().flatten())

    def reset(self) -> None:
        """Remove all rows of the table, including rows that others have inserted."""
        super().reset()
        self._close_sampler()
        self._writer.flush()
        self._abandon()
        self.table.reset()

    def close(self) -> None:
        """Send all added steps, and close the connections; later calls open them again.

        Running episodes are truncated, so that all of their steps can be drawn.

        Raises:
            ReplayError: steps or priorities could not be sent.
        """
        self._end(self._going_on)
        self._close_sampler()
        if "_writer" in self.__dict__:
            self._writer.close()
            self._finish.detach()
            del self._writer, self._finish

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that `save_replay_buffer` saves: settings and a reference to the table, but no rows."""
        self.close()
        return self.__dict__.copy()

    def _drawn(self, batch_size: int) -> Batch:
        """Draw a batch; truncate the running episodes if there are no other steps."""
        size = checked_count("batch_size", batch_size)
        is_flushed = False  # before the draw: steps that are stored while it is refused might have sufficed
        while True:
            try:
                return self._recent(size)
            except TableEmptyError:
                self._sampler_of(size).cancel()  # its other requests may be refused, too
                self._sampler = None
                if is_flushed:
                    if not self._going_on.any():
                        raise
                    self._end(self._going_on)  # now the newest steps can be drawn
                self._writer.flush()
                is_flushed = True

    def _recent(self, batch_size: int) -> Batch:
        """Return the oldest batch in flight that misses at most `max_lag_steps` steps. Older ones are dropped."""
        while True:
            if self._writer.in_flight > self._max_lag_steps or (self._stored and self._is_old(self._stored[0])):
                self._writer.flush()  # `sample` waits for a new batch anyway, so it is drawn from all steps
            batch, stored = self._oldest(self._sampler_of(batch_size))
            if not self._is_old(stored):
                self._count_batch()
                return batch

    def _is_old(self, stored: int) -> bool:
        """Whether a batch misses too many steps that was requested when this many rows were stored."""
        return self._added - stored > self._max_lag_steps

    @property
    def _added(self) -> int:
        writer = self._writer
        return writer.in_flight + writer.acknowledged  # in this order: rows may be acknowledged in between

    def _oldest(self, sampler: Sampler) -> tuple[Batch, int]:
        """Return the oldest batch in flight, and how many rows were stored when it was requested."""
        for _ in range(len(self._stored) - sampler.in_flight):
            self._stored.popleft()  # the request was refused
        stored_now = self._writer.acknowledged
        sampler.request()
        self._stored.extend([stored_now] * (sampler.in_flight - len(self._stored)))
        return next(sampler), self._stored.popleft()

    def _sampler_of(self, batch_size: int) -> Sampler:
        if batch_size != self._batch_size:
            self._close_sampler()
        if self._sampler is None:
            self._batch_size = batch_size
            self._batches, self._added_before = 0, self._added
            prefetch = self._prefetch or self._default_prefetch(self.n_envs)
            self._sampler = self.table.sampler(batch_size, beta=self._beta, prefetch=prefetch, timeout_s=0.0)
            self._stored.clear()
        if self._sampler.beta != self._beta:
            self._sampler.beta = self._beta
        return self._sampler

    def _count_batch(self) -> None:
        """Count a batch that was used, and sometimes adapt the number of batches in flight."""
        self._batches += 1
        if self._batches == _MEASURED_BATCHES and self._sampler is not None and self._prefetch is None:
            added = self._added
            self._sampler.prefetch = self._default_prefetch((added - self._added_before) // _MEASURED_BATCHES)
            self._batches, self._added_before = 0, added

    def _default_prefetch(self, steps_per_batch: int) -> int:
        # More would be too old. A block that is collected and one that is sent are missing, too.
        recent = 1 + max(0, self._max_lag_steps - 2 * self._block_rows) // max(1, steps_per_batch)
        if not self._is_uniform:
            return min(FEWEST, recent)
        row_bytes = sum(column.row_bytes for column in Steps.of(self._columns, self._item).sampled.values())
        return min(recent, max(FEWEST, min(_AHEAD, _AHEAD_BYTES // (self._batch_size * row_bytes))))

    def _close_sampler(self) -> None:
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.close()

    def _are_steps(
        self,
        before: dict[str, NDArray[Any]],
        reward: NDArray[Any],
        is_over: NDArray[Any],
        may_reset: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """Return bool[n_envs]: which environments have made a step. Those that ``may_reset`` may only have reset."""
        only_resets = may_reset
        if self._autoreset_mode is None:
            only_resets = may_reset & same_rows(before, self._final, self.n_envs) & (reward == 0) & ~is_over
        if only_resets.any() and self._tells_skipped:
            self._tells_skipped = False
            log.warning("steps that only reset an environment are not stored: its autoreset mode is NEXT_STEP")
        are_steps: NDArray[np.bool_] = ~only_resets
        return are_steps

    def _may_reset_next(self, infos: Any) -> bool:
        """Whether environments that have ended an episode may only reset in their next step."""
        if self._autoreset_mode is None:
            return isinstance(infos, Mapping) and not any(name in infos for name in _FINAL_OBS)
        return self._autoreset_mode is AutoresetMode.NEXT_STEP

    def _end(self, which: NDArray[np.bool_], terminated: NDArray[np.bool_] | None = None) -> None:
        if which.any():
            self._writer.end_episodes(which, self._final, terminated=terminated)
            self._going_on &= ~which

    def _abandon(self) -> None:
        """Leave the running episodes unfinished; the next steps begin others."""
        for stream in range(self.n_envs):
            self._writer[stream].abandon_episode()
        self._going_on[:], self._resets_next = False, None

    def _check_lengths(self) -> None:
        """Check that the running episodes may have another step, for derived classes."""

    def _observations(self, argument: str, obs: Any) -> dict[str, NDArray[Any]]:
        """Convert SB3's observations to columns, ``[n_envs, *shape]`` by name."""
        if OBS in self._observed:
            return {OBS: self._checked(argument, obs, OBS)}
        keys = {name: name.removeprefix(f"{OBS}{SEPARATOR}") for name in self._observed}
        missing = [key for key in keys.values() if key not in obs]
        if missing:
            expected = f"a mapping with {', '.join(keys.values())}"
            raise InvalidArgumentError.of_field(argument, expected, f"none of {', '.join(missing)}")
        return {name: self._checked(f"{argument}[{key!r}]", obs[key], name) for name, key in keys.items()}

    def _checked(self, argument: str, value: Any, name: str | None = None) -> NDArray[Any]:
        """Convert values to the dtype of a column (None: of the argument's name), ``[n_envs, *shape]``."""
        column, dtype, shape = self._arguments[name or argument]
        is_cast = type(value) is np.ndarray and value.dtype == dtype
        array: NDArray[Any] = value if is_cast else np.asarray(checked_array(argument, column, value), dtype)
        if array.shape == shape:
            return array
        # SB3, too, accepts Discrete values with and without a last axis, and stores actions as vectors.
        usual = (self.n_envs, *(self.action_space.shape or ())) if argument == "action" else shape
        if _long_axes(array.shape) not in (_long_axes(shape), _long_axes(usual)):
            expected = f"{column.dtype}[{','.join(map(str, shape))}]"
            raise InvalidArgumentError.of_field(argument, expected, described(array))
        return array.reshape(shape)

    def _timeouts(self, infos: list[dict[str, Any]] | Mapping[str, Any], is_done: NDArray[Any]) -> NDArray[Any] | None:
        """Return bool[n_envs]: which environments were stopped by a time limit, unless this counts as a terminal state.

        None: none was, which is the usual case.

        Raises:
            InvalidArgumentError: the infos are not those of all environments, or do not say why an episode is done.
        """
        if not self.handle_timeout_termination:
            return None
        if not isinstance(infos, Mapping):
            flags: Any = [bool(info.get(_TIMEOUT, False)) for info in infos]
            if len(flags) == self.n_envs and not any(flags):
                return None
        elif _TIMEOUT in infos:
            flags = infos[_TIMEOUT]
        elif not is_done.any():
            return None
        else:
            expected = (
                f"{_TIMEOUT!r}, such as truncations & ~terminations; or create the buffer with "
                "handle_timeout_termination=False and add terminations as done"
            )
            raise InvalidArgumentError.of_field("infos", expected, ", ".join(map(str, infos)) or "none")
        return checked_flags(f"infos[{_TIMEOUT!r}]", flags, (self.n_envs,), meaning=", one for each environment")

    def _more_columns(self, infos: Any) -> dict[str, NDArray[Any]]:
        """Return more columns of a step, ``[n_envs, *shape]`` by name, for derived classes."""
        return {}

    def _normalized(self, columns: Mapping[str, Any], prefix: str, env: VecNormalize | None) -> Any:
        if not isinstance(self.observation_space, spaces.Dict):
            return self._tensor(self._normalize_obs(columns[prefix], env))
        parts = self._normalize_obs({key: columns[f"{prefix}{SEPARATOR}{key}"] for key in self.observation_space}, env)
        return {key: self._tensor(part) for key, part in cast(dict[str, NDArray[Any]], parts).items()}

    def _rewards(self, columns: Mapping[str, Any], env: VecNormalize | None) -> NDArray[np.float32]:
        if self.n_steps == 1:
            return self._normalize_reward(columns["reward"], env)
        returns: NDArray[np.float32] = columns["n_return"]
        if env is None or not env.norm_reward:
            return returns
        largest = env.clip_reward * np.sum(self._item.gamma ** np.arange(self.n_steps))
        scaled = returns / np.sqrt(env.ret_rms.var + env.epsilon)
        return np.asarray(np.clip(scaled, -largest, largest), np.float32)

    def _tensor(self, array: Any) -> torch.Tensor:
        """Move an array of a batch to the device. The CPU needs no copy: batches belong to the sampler's caller."""
        tensor = torch.from_numpy(array)
        return tensor if self.device.type == "cpu" else tensor.to(self.device)


def _space_columns(argument: str, name: str, space: spaces.Space[Any]) -> dict[str, Column]:
    """Return the columns for values of a space, with the shapes that SB3's networks expect."""
    expected = "Box, Discrete, MultiDiscrete, MultiBinary, or for observations a Dict of them"
    if isinstance(space, spaces.Dict) and any(isinstance(part, spaces.Dict) for part in space.values()):
        raise InvalidArgumentError.of_field(argument, expected, f"{space} (a Dict in a Dict)")
    try:
        if argument == "observation_space" and isinstance(space, spaces.Dict):
            return {f"{name}{SEPARATOR}{key}": _column(part, get_obs_shape(part)) for key, part in space.items()}
        if argument == "observation_space":
            return {name: _column(space, get_obs_shape(space))}
        dtype = ReplayBuffer._maybe_cast_dtype(space.dtype)
        return {name: Column(cast(Any, dtype), get_action_dim(space))}
    except (NotImplementedError, AssertionError, FieldError, TypeError) as error:
        raise InvalidArgumentError.of_field(argument, expected, f"{space} ({error})") from None


def _long_axes(shape: tuple[int, ...]) -> list[int]:
    return [length for length in shape if length != 1]


def next_column(name: str) -> str:
    """Return the name of the column of next observations for a column of observations."""
    return f"{_NEXT_OBS}{name.removeprefix(OBS)}"


def _refuse(unknown: Mapping[str, Any]) -> None:
    """Refuse unknown arguments. Those of hindsight experience replay belong to another class."""
    for name in unknown:
        hint = "; use ServiceHerReplayBuffer for hindsight experience replay" if name in _OF_HER else ""
        raise TypeError(f"ServiceReplayBuffer has no argument {name!r}{hint}")


def _column(space: spaces.Space[Any], shape: Any) -> Column:
    return Column(cast(Any, space.dtype), shape)


def _give_up(writer: Writer) -> None:
    """Send the remaining rows of a buffer that was garbage-collected without `close`."""
    try:
        writer.close(timeout_s=GIVE_UP_S)
    except ReplayError as error:
        log.warning("%d steps were not stored: %s", writer.in_flight, error)
