"""Compares what buffers of a service give back with what each library's own buffer or dataset gives, in random spaces.

    python -m tests.integrations.same_as_libraries 500      # 500 spaces for each library

Each comparison makes a table for a random space, with values that include NaN, infinity, negative zero and the extremes
of each dtype, random ends of episodes, and 1 to 4 environments. It raises an `AssertionError` for any different bit.
"""

from __future__ import annotations

import sys
import tempfile
import uuid
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any, Final
from unittest import mock

import numpy as np
import torch
from gymnasium import spaces, wrappers
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from replay_client import Column, LocalServer, Next, ReplayClient, Table, Transitions
from replay_client.gymnasium import RecordSteps
from replay_client.spaces import columns_from_space, unflatten_value
from replay_proto.v1 import replay_pb2

from tests.integrations.random_spaces import (
    RandomEnv,
    Rng,
    bits,
    random_plain,
    random_space,
    random_value,
    stacked,
)

GAMMA: Final = 0.5
"""With rewards that are multiples of a quarter, returns are exact."""
MANY: Final = 400
"""Draws that miss no row: they are stratified, and there are at most half as many rows."""


@contextmanager
def table_name(client: ReplayClient) -> Iterator[str]:
    """The name of a new table, which is dropped at the end."""
    name = f"same-{uuid.uuid4().hex}"
    yield name
    if name in client:
        client.drop_table(name)


def same_as_sb3(client: ReplayClient, rng: Rng) -> None:
    """Samples of Stable-Baselines3: one step, or three."""
    from replay_client.sb3 import ServiceReplayBuffer
    from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer

    # SB3 cannot index Box spaces of shape ()
    parts = [part for part in (random_plain(rng) for _ in range(4)) if part.shape or isinstance(part, spaces.Discrete)]
    parts.append(spaces.Discrete(3))
    observed = (
        parts[0] if rng.random() < 0.6 else spaces.Dict({f"p{number}": part for number, part in enumerate(parts)})
    )
    acting, n_envs, steps = random_plain(rng), int(rng.integers(1, 5)), int(rng.integers(1, 12))
    is_nested = isinstance(observed, spaces.Dict)
    n_steps = 1 if is_nested else int(rng.choice([1, 3]))
    options: dict[str, Any] = {"n_envs": n_envs, "handle_timeout_termination": bool(rng.integers(2))}
    returns: dict[str, Any] = {} if n_steps == 1 else {"n_steps": n_steps, "gamma": GAMMA}
    kind: Any = DictReplayBuffer if is_nested else ReplayBuffer if n_steps == 1 else NStepReplayBuffer
    theirs = kind(steps * n_envs, observed, acting, "cpu", **options, **returns)

    def seen() -> Any:
        return stacked([random_value(rng, observed) for _ in range(n_envs)])

    with table_name(client) as name:
        ours = ServiceReplayBuffer(
            1000, observed, acting, "cpu", **options, **returns, address=client, table=name, seed=0, max_lag_steps=0
        )
        before = seen()
        for step in range(steps):
            after, first = seen(), seen()
            done = (rng.random(n_envs) < 0.3) | (step == steps - 1)
            timeout = (done | (rng.random(n_envs) < 0.2)) & (rng.random(n_envs) < 0.5)  # SB3 stops at both
            infos = [{"TimeLimit.truncated": bool(flag)} for flag in timeout]
            actions = stacked([random_value(rng, acting) for _ in range(n_envs)])
            if acting.dtype == np.float64:  # which SB3 stores as float32
                actions = actions.clip(-1e38, 1e38)
            given: Any = (before, after, actions, rng.integers(-40, 40, n_envs) / 4, done, infos)
            theirs.add(*deepcopy(given))  # it reshapes the observations in place
            ours.add(*given)
            is_reset = done | (rng.random() < 0.1 and n_steps == 1)  # `learn` may interrupt episodes
            before = mixed(is_reset, first, after)
        drawn = ours.sample(MANY)
        ours.close()
    expected = set()
    for env in range(n_envs):
        with mock.patch("numpy.random.randint", return_value=np.full(steps, env)):
            expected |= {sample_bits(theirs._get_samples(np.arange(steps)), row) for row in range(steps)}
    assert {sample_bits(drawn, row) for row in range(MANY)} == expected


def mixed(which: Any, values: Any, others: Any) -> Any:
    """Take ``values`` where ``which``, and ``others`` elsewhere."""
    if isinstance(values, dict):
        return {name: mixed(which, values[name], others[name]) for name in values}
    return np.where(np.reshape(which, (-1, *(1 for _ in values.shape[1:]))), values, others)


def sample_bits(samples: Any, row: int) -> Any:
    """What a learner gets of one sample of Stable-Baselines3."""
    # SB3 multiplies the two; a terminal sample has any discount
    alive = (1 - samples.dones) * (1.0 if samples.discounts is None else samples.discounts)
    parts = (samples.observations, samples.actions, samples.next_observations, samples.rewards, alive)
    return bits(tuple(as_arrays(part) for part in parts), row)


def as_arrays(value: Any) -> Any:
    return {name: part.numpy() for name, part in value.items()} if isinstance(value, dict) else value.numpy()


def same_as_tianshou(client: ReplayClient, rng: Rng) -> None:
    """Targets of Tianshou's algorithms, over 1 to 3 steps."""
    from replay_client.tianshou import ServiceReplayBuffer
    from tianshou.data import Batch, VectorReplayBuffer

    observed, acting = random_space(rng, tuples=False), random_plain(rng)
    n_envs, n_step = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    theirs = VectorReplayBuffer(total_size=100 * n_envs, buffer_num=n_envs)
    before = [random_value(rng, observed) for _ in range(n_envs)]
    steps = int(rng.integers(1, 12))
    with table_name(client) as name:
        ours = ServiceReplayBuffer(client, name, env_num=n_envs, capacity=1000, n_step=n_step, gamma=GAMMA)
        for step in range(steps):
            which = np.sort(rng.choice(n_envs, rng.integers(1, n_envs + 1), replace=False))
            which = np.arange(n_envs) if step == steps - 1 else which
            after = [random_value(rng, observed) for _ in which]
            terminated, truncated = rng.random(len(which)) < 0.2, rng.random(len(which)) < 0.2
            truncated |= step == steps - 1
            given = Batch(
                obs=batch_of(stacked([before[env] for env in which])),
                act=stacked([random_value(rng, acting) for _ in which]),
                rew=rng.integers(-40, 40, len(which)) / 4,
                terminated=terminated,
                truncated=truncated,
                obs_next=batch_of(stacked(after)),
                info=Batch(),
                policy=Batch(),
            )
            theirs.add(given, buffer_ids=which)
            ours.add(given, buffer_ids=which)
            for place, env in enumerate(which):
                is_over = terminated[place] or truncated[place]
                before[env] = random_value(rng, observed) if is_over else after[place]
        expected, drawn = theirs.sample(0), ours.sample(MANY)
        assert targets(ours, drawn, n_step) == targets(theirs, expected, n_step)
        ours.close()


def batch_of(value: Any) -> Any:
    from tianshou.data import Batch

    return Batch({name: batch_of(part) for name, part in value.items()}) if isinstance(value, dict) else value


def unbatched(value: Any) -> Any:
    from tianshou.data import Batch

    return {name: unbatched(value[name]) for name in value.get_keys()} if isinstance(value, Batch) else value


def targets(buffer: Any, sampled: tuple[Any, Any], n_step: int) -> set[Any]:
    """Observation, action and n-step target of each sample; the value of an observation depends on all its bits."""
    from tianshou.algorithm import DQN

    def value_after(buffer: Any, indices: Any) -> Any:
        after = unbatched(buffer[indices].obs_next)
        values = [zlib.crc32(repr(bits(after, row)).encode()) % 1024 / 4 for row in range(len(indices))]
        return torch.tensor(values, dtype=torch.float64)

    batch, indices = sampled
    returns = DQN.compute_nstep_return(batch, buffer, indices, value_after, GAMMA, n_step).returns
    seen, actions = unbatched(batch.obs), unbatched(batch.act)
    return {
        (bits(seen, row), bits(actions, row), value) for row, value in enumerate(returns.double().flatten().tolist())
    }


def same_as_torchrl(client: ReplayClient, rng: Rng) -> None:
    """Tensordicts of TorchRL, with any batch size."""
    from replay_client.torchrl import ServiceReplayBuffer
    from tensordict import TensorDict
    from torchrl.data import ListStorage, TensorDictReplayBuffer

    observed, acting = random_space(rng, tuples=False), random_plain(rng)
    shape = tuple(rng.integers(1, 6, size=rng.integers(1, 3)).tolist())
    count = int(np.prod(shape))

    def seen() -> Any:
        return stacked([random_value(rng, observed) for _ in range(count)])

    values = {
        "observation": seen(),
        "action": stacked([random_value(rng, acting) for _ in range(count)]),
        "next": {
            "observation": seen(),
            "reward": rng.normal(size=(count, 1)).astype(np.float32),
            "terminated": rng.random((count, 1)) < 0.3,
        },
    }
    data = TensorDict(tensors_of(values), batch_size=[count])
    theirs = TensorDictReplayBuffer(storage=ListStorage(count), batch_size=count)  # others lack uint16 to uint64
    theirs.extend(data)
    with table_name(client) as name:
        ours = ServiceReplayBuffer(client, name, capacity=1000)
        keys = ours.extend(data.reshape(shape))
        drawn = ours.sample(MANY)
    assert set(drawn["index"].tolist()) == set(keys.tolist())
    places = torch.searchsorted(keys, drawn["index"])
    mine, other = drawn.exclude("index", "priority_weight"), theirs[:].exclude("index")
    assert set(mine.keys(True, True)) == set(other.keys(True, True))
    for key, part in other.items(True, True):
        assert bits(mine[key].numpy()) == bits(part.numpy()[places]), key


def tensors_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: tensors_of(part) for name, part in value.items()}
    return torch.from_numpy(np.ascontiguousarray(value).reshape(np.shape(value)))


def steps_table(client: ReplayClient, name: str, observed: spaces.Space[Any], acting: spaces.Space[Any]) -> Table:
    columns = columns_from_space(observed, "obs") | columns_from_space(acting, "action")
    derived = {f"next_{column}": Next(column) for column in columns if column.split("/")[0] == "obs"}
    return client.create_table(
        name, columns={**columns, "reward": Column("float64"), **derived}, capacity=1000, steps=Transitions(1)
    )


def recorded_envs(client: ReplayClient, rng: Rng, table: Table, observed: Any, acting: Any) -> list[RandomEnv]:
    """Record steps of 1 to 4 environments, one by one or as a vector environment; return the environments."""
    seeds = rng.integers(2**32, size=rng.integers(1, 5)).tolist()
    envs = [RandomEnv(seed, observed, acting) for seed in seeds]
    steps = int(rng.integers(1, 16))
    with table.writer(streams=len(envs)) as writer:
        if rng.random() < 0.3:
            for stream, env in enumerate(envs):
                single = RecordSteps(wrappers.Autoreset(env), writer[stream])
                single.reset()
                for _ in range(steps):
                    single.step(random_value(rng, acting))
            return envs
        mode = [*AutoresetMode][rng.integers(3)]
        vector = RecordSteps(SyncVectorEnv([partial(same, env) for env in envs], autoreset_mode=mode), writer)
        vector.reset()
        for _ in range(steps):
            actions = stacked([random_value(rng, acting) for _ in envs])
            *_, terminated, truncated, _ = vector.step(actions)
            is_over = terminated | truncated
            if mode is AutoresetMode.DISABLED and is_over.any():
                vector.reset(options={"reset_mask": is_over})
    return envs


def same(env: RandomEnv) -> RandomEnv:
    return env


def episodes_of(table: Table, observed: spaces.Space[Any], acting: spaces.Space[Any]) -> list[Any]:
    """The finished episodes in a table, bit by bit."""
    found = []
    for rows in table.rows(order="episode"):
        assert rows.ends is not None
        assert rows.steps is not None
        start = 0
        for place in np.flatnonzero(np.append(np.diff(rows.steps) != 1, True)).tolist():
            part = {name: column[start : place + 1] for name, column in rows.items()}
            if rows.ends[place]:
                observations = unflatten_value(observed, "obs", part)
                actions = unflatten_value(acting, "action", {name: column[:-1] for name, column in part.items()})
                is_terminated = int(rows.ends[place]) == replay_pb2.EPISODE_END_TERMINATED
                found.append((bits(observations), bits(actions), bits(part["reward"][:-1]), is_terminated))
            start = place + 1
    return sorted(found)


def made_by(envs: list[RandomEnv]) -> list[Any]:
    """The finished episodes that environments made, bit by bit."""
    return sorted(
        (
            bits(stacked(made.observations)),
            bits(stacked(made.actions)),
            bits(np.array(made.rewards)),
            made.is_terminated,
        )
        for env in envs
        for made in env.finished
    )


def same_as_gymnasium(client: ReplayClient, rng: Rng) -> None:
    """Episodes that `RecordSteps` records, in all autoreset modes."""
    observed, acting = random_space(rng), random_space(rng)
    with table_name(client) as name:
        table = steps_table(client, name, observed, acting)
        envs = recorded_envs(client, rng, table, observed, acting)
        assert episodes_of(table, observed, acting) == made_by(envs)


def same_as_minari(client: ReplayClient, rng: Rng) -> None:
    """Datasets that are exported, and imported again."""
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from replay_client.minari import export_dataset, import_dataset

    observed, acting = random_space(rng), random_space(rng)
    options: Any = {"observation_space": observed, "action_space": acting}
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict("os.environ", MINARI_DATASETS_PATH=folder),
        warnings.catch_warnings(),
        table_name(client) as name,
        table_name(client) as copy,
    ):
        warnings.simplefilter("ignore", UserWarning)  # of Minari, about details of datasets
        table = steps_table(client, name, observed, acting)
        envs = recorded_envs(client, rng, table, observed, acting)
        saved = export_dataset(table, "tests/ours-v0", **options)
        buffers = [
            EpisodeBuffer(
                observations=stacked(made.observations),
                actions=stacked(made.actions),
                rewards=np.array(made.rewards),
                terminations=last_only(made.rewards, is_last=made.is_terminated),
                truncations=last_only(made.rewards, is_last=made.is_truncated and not made.is_terminated),
                infos={},
            )
            for env in envs
            for made in env.finished
        ]
        own = minari.create_dataset_from_buffers("tests/theirs-v0", buffers, jpeg_encoding=False, **options)
        assert sorted(map(dataset_bits, saved.dataset)) == sorted(map(dataset_bits, own))
        again = steps_table(client, copy, observed, acting)
        assert import_dataset(again, own).episodes == len(buffers)
        assert episodes_of(again, observed, acting) == made_by(envs)


def last_only(rewards: list[float], *, is_last: bool) -> Any:
    return np.append(np.zeros(len(rewards) - 1, bool), is_last)


def dataset_bits(episode: Any) -> Any:
    """An episode of a dataset, bit by bit."""
    parts = (episode.observations, episode.actions, episode.rewards, episode.terminations, episode.truncations)
    return tuple(bits(part) for part in parts)


Comparison = Callable[[ReplayClient, Rng], None]
COMPARISONS: Final[dict[str, Comparison]] = {
    "stable_baselines3": same_as_sb3,
    "tianshou": same_as_tianshou,
    "torchrl": same_as_torchrl,
    "gymnasium": same_as_gymnasium,
    "minari": same_as_minari,
}


def compare(library: str, client: ReplayClient, seeds: range) -> int:
    """Compare once for each seed, and return the number of comparisons; an error says its seed."""
    for seed in seeds:
        try:
            COMPARISONS[library](client, np.random.default_rng(seed))
        except BaseException as error:
            error.add_note(f"{library}, seed {seed}")
            raise
    return len(seeds)


def main(spaces_each: int) -> None:
    """Compare with all libraries, and print the number of spaces."""
    with LocalServer() as server, server.client() as client:
        for library in COMPARISONS:
            print(f"{library}: {compare(library, client, range(spaces_each))} spaces, 0 differences", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
