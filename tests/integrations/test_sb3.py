"""The replay buffer and the prioritized algorithms for Stable-Baselines3, with the real library."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from replay_client import (
    Batch,
    InvalidArgumentError,
    ReplayClient,
    ServerUnavailableError,
    TableEmptyError,
    TableExistsError,
    TableReplacedError,
)

pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")

from replay_client.sb3 import PrioritizedDQN, ServiceReplayBuffer, ServiceSamples
from stable_baselines3 import SAC
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from tests.client.steps.numbered_env import NumberedEnv
from tests.support.server_process import ServerProcess

NewBuffer = Callable[..., ServiceReplayBuffer]
BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)
MANY = 200
"""Samples that have each of a few dozen rows: stratified draws of equal priorities miss none."""


class Reach(gymnasium.Env[Any, Any]):
    """Move a point to the origin; observations are dicts."""

    observation_space = spaces.Dict({"at": spaces.Box(-10, 10, (2,)), "near": spaces.Discrete(2)})
    action_space = spaces.Box(-1, 1, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._at, self._steps = self.np_random.uniform(-3, 3, 2).astype(np.float32), 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._at, self._steps = np.clip(self._at + action, -10, 10).astype(np.float32), self._steps + 1
        distance = float(np.linalg.norm(self._at))
        return self._seen(), -distance, distance < 0.5, self._steps == 8, {}

    def _seen(self) -> Any:
        return {"at": self._at, "near": int(np.linalg.norm(self._at) < 2)}


@pytest.fixture
def client(server: ServerProcess) -> Iterator[ReplayClient]:
    with ReplayClient(server.address) as made:
        yield made


@pytest.fixture
def name(client: ReplayClient) -> Iterator[str]:
    """The name of a table, which is dropped at the end."""
    chosen = f"sb3-{uuid.uuid4().hex}"
    yield chosen
    if chosen in client:
        client.drop_table(chosen)


@pytest.fixture
def in_table(client: ReplayClient, name: str) -> dict[str, Any]:
    """The ``replay_buffer_kwargs`` of a table."""
    return {"address": client, "table": name}


@pytest.fixture
def new_buffer(in_table: dict[str, Any]) -> Iterator[NewBuffer]:
    made = []

    def create(
        observed: spaces.Space[Any] = BOX, acting: spaces.Space[Any] | None = None, **options: Any
    ) -> ServiceReplayBuffer:
        given = {"buffer_size": 10_000, "device": "cpu", "max_lag_steps": 0, **in_table, **options}
        made.append(ServiceReplayBuffer(observation_space=observed, action_space=acting or spaces.Discrete(4), **given))
        return made[-1]

    yield create
    for buffer in made:
        buffer.close()


def steps(n_envs: int, count: int, seed: int) -> Iterator[tuple[Any, ...]]:
    """Steps of environments as SB3 adds them; every observation is another one. The last ends all episodes."""
    rng = np.random.default_rng(seed)
    numbers = np.arange(n_envs, dtype=np.float32) * 1000
    obs = np.stack([numbers, -numbers], axis=1)
    for step in range(count):
        done = (rng.random(n_envs) < 0.2) | (step == count - 1)
        timeout = done & (rng.random(n_envs) < 0.5)
        infos = [{"TimeLimit.truncated": bool(flag)} for flag in timeout]
        yield obs, obs + 1, rng.integers(4, size=n_envs), rng.normal(size=n_envs), done, infos
        obs = np.where(done[:, None], obs + 7, obs + 1)


def by_obs(samples: Any) -> dict[float, tuple[Any, ...]]:
    """What a learner sees of samples, by their observations."""
    discounts = 0.99 if samples.discounts is None else samples.discounts
    discounts = (1 - samples.dones) * discounts
    parts = (samples.observations[:, 0], samples.actions, samples.next_observations, samples.rewards, discounts)
    return {
        float(obs): tuple(np.round(np.ravel(each), 4).tolist() for each in rest)
        for obs, *rest in zip(*parts, strict=True)
    }


def test_each_observation_is_stored_once(new_buffer: NewBuffer) -> None:
    buffer = new_buffer(n_envs=2, n_steps=3, gamma=0.99)
    episodes = 0
    for step in steps(2, 20, seed=0):
        buffer.add(*step)
        episodes += int(step[4].sum())
    buffer.sample(1)
    assert set(buffer.table.schema) == {"obs", "action", "reward"}
    assert len(buffer.table) == 2 * 20 + episodes
    assert buffer.size() == (2 * 20 + episodes) // 2


def test_an_interrupted_episode_ends_with_its_own_observation(new_buffer: NewBuffer) -> None:
    buffer = new_buffer(n_steps=2, gamma=0.99)
    for first in (0.0, 50.0):  # the environment is reset in between, as `learn` does
        for number in (first, first + 1, first + 2):
            obs = np.full((1, 2), number, np.float32)
            buffer.add(obs, obs + 1, np.array([0]), np.array([1.0]), np.array([False]), [{}])
    buffer.close()
    samples = buffer.sample(MANY)
    pairs = torch.stack([samples.observations[:, 0], samples.next_observations[:, 0]], dim=1).tolist()
    assert {tuple(pair) for pair in pairs} == {(0, 2), (1, 3), (2, 3), (50, 52), (51, 53), (52, 53)}
    assert not samples.dones.any()


def test_infos_of_vector_environments_are_ignored_without_timeouts(new_buffer: NewBuffer) -> None:
    options: dict[str, Any] = {"n_envs": 2, "handle_timeout_termination": False}
    expected, buffer = ReplayBuffer(60, BOX, spaces.Discrete(4), "cpu", **options), new_buffer(**options)
    infos = {"final_obs": np.array([None, np.zeros(2)], object), "_final_obs": np.array([False, True])}
    for step in steps(2, 30, seed=2):
        given: Any = (*step[:5], infos)
        expected.add(*given)
        buffer.add(*given)
    assert by_obs(buffer.sample(MANY)) == by_obs(expected.sample(8 * MANY))


def test_infos_of_vector_environments_say_which_episodes_were_truncated(new_buffer: NewBuffer) -> None:
    buffer, twin = new_buffer(n_envs=2), ReplayBuffer(60, BOX, spaces.Discrete(4), "cpu", n_envs=2)
    for step in steps(2, 30, seed=2):
        twin.add(*step)
        given: Any = (*step[:5], {"TimeLimit.truncated": np.array([info["TimeLimit.truncated"] for info in step[5]])})
        buffer.add(*given)
    assert by_obs(buffer.sample(MANY)) == by_obs(twin.sample(8 * MANY))


@pytest.mark.parametrize("timeouts", [False, True])
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("mode", AutoresetMode)
def test_steps_that_only_reset_a_vector_environment_are_not_stored(
    new_buffer: NewBuffer, caplog: pytest.LogCaptureFixture, mode: AutoresetMode, n_envs: int, timeouts: bool
) -> None:
    makers = [partial(NumberedEnv, number + 1, reuses_arrays=False) for number in range(n_envs)]
    envs: Any = SyncVectorEnv(makers, autoreset_mode=mode)
    buffer = new_buffer(n_envs=n_envs, handle_timeout_termination=timeouts)
    obs, _ = envs.reset()
    over = np.zeros(n_envs, bool)  # written again in every step, as the arrays of some vector environments
    for step in range(40):
        action = np.full(n_envs, step % 4)
        after, rewards, terminated, truncated, infos = envs.step(action)
        np.logical_or(terminated, truncated, out=over)
        next_obs = after.copy()
        if mode is AutoresetMode.SAME_STEP and over.any():
            next_obs[over] = np.stack(list(infos["final_obs"][over]))
        buffer.add(obs, next_obs, action, rewards, over, {**infos, "TimeLimit.truncated": truncated})
        if mode is AutoresetMode.DISABLED and over.any():
            after, _ = envs.reset(options={"reset_mask": over})
        obs = after
    buffer.close()  # so that the newest steps can be drawn
    made = [episode for env in envs.envs for episode in env.unwrapped.made]
    expected = {float(number): number + 1.0 for episode in made for number, _, _ in episode.steps}
    samples = buffer.sample(MANY * n_envs)
    found = zip(samples.observations[:, 0].tolist(), samples.next_observations[:, 0].tolist(), strict=True)
    assert dict(found) == expected
    told = [record for record in caplog.records if "NEXT_STEP" in record.getMessage()]
    assert len(told) == (mode is AutoresetMode.NEXT_STEP)


WRONG: list[tuple[str, dict[int, Any]]] = [
    (r"obs: expected float32\[2,2\]", {0: np.zeros((2, 3), np.float32)}),
    (r"next_obs: expected float32\[2,2\]", {1: np.zeros((1, 2), np.float32)}),
    (r"obs: expected float32\[2,2\]", {0: np.zeros((4, 1), np.float32)}),
    (r"next_obs: expected float32, .* got 1e\+39", {1: np.full((2, 2), 1e39)}),
    (r"action: expected int64\[2,1\]", {2: np.zeros(3, np.int64)}),
    ("action: expected int64", {2: np.zeros(2)}),
    (r"reward: expected float32\[2\]", {3: np.zeros(1)}),
    ("reward: expected float32, .* got 1e\\+39", {3: np.array([0, 1e39])}),
    ("done: expected bool, or 0 and 1", {4: np.array([0.5, 1])}),
    ("infos.*: expected bool.*one for each environment", {5: [{}]}),
    ("infos: expected 'TimeLimit.truncated'.*handle_timeout_termination=False.* got none", {5: {}}),
]


@pytest.mark.parametrize(("named", "changed"), WRONG, ids=[named for named, _ in WRONG])
def test_all_arguments_are_checked_before_anything_is_added(
    new_buffer: NewBuffer, named: str, changed: dict[int, Any]
) -> None:
    buffer = new_buffer(n_envs=2)
    right: list[Any] = [np.zeros((2, 2)), np.ones((2, 2)), np.zeros(2, int), np.zeros(2), np.ones(2, bool), [{}, {}]]
    buffer.add(right[1], right[0], right[2], right[3], np.zeros(2, bool), {})
    with pytest.raises(InvalidArgumentError, match=named):
        buffer.add(*[changed.get(place, value) for place, value in enumerate(right)])
    buffer.close()
    assert (buffer.size(), buffer.pos) == (2, 1)  # two steps, and the rows that close their episodes


@pytest.mark.parametrize("shape", [(6, 2), (3, 4, 2)])
def test_images_of_another_layout_are_refused(new_buffer: NewBuffer, shape: tuple[int, ...]) -> None:
    buffer = new_buffer(spaces.Box(-1, 1, (4, 3, 2)), n_envs=1)
    with pytest.raises(InvalidArgumentError, match=r"obs: expected float32\[1,4,3,2\]"):
        buffer.add(
            np.zeros((1, *shape)), np.zeros((1, 4, 3, 2)), np.zeros(1, int), np.zeros(1), np.zeros(1, bool), [{}]
        )


def test_actions_of_any_shape_are_stored_as_vectors_as_in_sb3(new_buffer: NewBuffer) -> None:
    buffer = new_buffer(BOX, spaces.Box(-9, 9, (2, 3)), n_envs=2)
    actions = np.arange(12.0).reshape(2, 2, 3) - 6
    buffer.add(np.zeros((2, 2)), np.ones((2, 2)), actions, np.zeros(2), np.ones(2, bool), [{}, {}])
    assert np.unique(buffer.sample(MANY).actions, axis=0).tolist() == actions.reshape(2, 6).tolist()


@pytest.mark.parametrize("n_envs", [1, 2])
def test_a_step_that_ctrl_c_ends_leaves_no_wrong_transition(new_buffer: NewBuffer, n_envs: int) -> None:
    """It comes after the writer has taken the row, and before the buffer knows the observation after the step."""
    buffer = new_buffer(n_envs=n_envs)
    method = "append" if n_envs == 1 else "append_all"
    take = getattr(buffer._writer, method)

    def add(number: int) -> None:
        obs = np.full((n_envs, 2), number, np.float32)
        buffer.add(obs, obs + 1, np.zeros(n_envs, int), np.ones(n_envs), np.full(n_envs, number == 101), [{}] * n_envs)

    def take_and_interrupt(*args: Any, **kwargs: Any) -> None:
        take(*args, **kwargs)
        raise KeyboardInterrupt

    add(0)
    add(1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(buffer._writer, method, take_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            add(2)
    for number in (100, 101):  # the environment was reset, as `learn` does
        add(number)
    samples = buffer.sample(MANY)
    pairs = torch.stack([samples.observations[:, 0], samples.next_observations[:, 0]], dim=1).tolist()
    assert {tuple(pair) for pair in pairs} == {(0, 1), (1, 2), (100, 101), (101, 102)}


class Alike(gymnasium.Env[Any, Any]):
    """Episodes of three steps, without rewards, whose observations are all the same."""

    observation_space = BOX
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return np.zeros(2, np.float32), 0.0, self._steps == 3, False, {}


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_with_the_autoreset_mode_neither_rewards_nor_equal_observations_matter(
    new_buffer: NewBuffer, mode: AutoresetMode
) -> None:
    buffer = new_buffer(n_envs=2, autoreset_mode=mode)
    envs: Any = SyncVectorEnv([Alike, Alike], autoreset_mode=mode)
    obs, _ = envs.reset()
    made, over = 0, np.zeros(2, bool)
    for _ in range(20):
        made += 2 if mode is AutoresetMode.DISABLED else int((~over).sum())
        after, rewards, over, truncated, infos = envs.step(np.zeros(2, int))
        if mode is AutoresetMode.NEXT_STEP:
            rewards = rewards - 0.01  # as a wrapper does, also in steps that only reset
        buffer.add(obs, after, np.zeros(2, int), rewards, over, {**infos, "TimeLimit.truncated": truncated})
        if mode is AutoresetMode.DISABLED and over.any():
            after, _ = envs.reset(options={"reset_mask": over})
        obs = after
    buffer.close()
    stats = buffer.table.stats().steps
    assert stats is not None
    assert stats.drawable == made


def test_a_missing_part_of_an_observation_is_named(new_buffer: NewBuffer) -> None:
    buffer = new_buffer(spaces.Dict({"at": BOX, "near": spaces.Discrete(2)}))
    seen = {"at": np.zeros((1, 2)), "near": np.zeros(1, int)}
    with pytest.raises(InvalidArgumentError, match="next_obs: expected a mapping with at, near, got none of near"):
        buffer.add(seen, {"at": np.zeros((1, 2))}, np.zeros(1, int), np.zeros(1), np.zeros(1, bool), [{}])


@pytest.mark.parametrize(
    "options",
    [{"prefetch": 1}, {"prefetch": 2}, {"backend": "uniform"}, {"backend": "uniform", "max_lag_steps": 100}],
    ids=str,
)
def test_the_newest_steps_are_drawn_if_there_are_no_others(new_buffer: NewBuffer, options: dict[str, Any]) -> None:
    buffer = new_buffer(n_steps=5, gamma=0.99, **options)
    with pytest.raises(TableEmptyError):
        buffer.sample(4)
    obs = np.ones((1, 2), np.float32)
    buffer.add(obs, 2 * obs, np.array([3]), np.array([1.0]), np.array([False]), [{}])
    assert buffer.sample(4).next_observations.tolist() == [[2, 2]] * 4
    discounts = buffer.sample(4).discounts
    assert discounts is not None
    assert discounts.tolist() == [[pytest.approx(0.99)]] * 4


def test_an_episode_continues_if_its_steps_are_stored_while_a_draw_is_refused(
    new_buffer: NewBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = new_buffer(max_lag_steps=100)
    draw = buffer._recent

    def draw_slowly(batch_size: int) -> Batch:
        try:
            return draw(batch_size)
        except TableEmptyError:
            buffer._writer.flush()  # here the writer's own thread sends them if the refusal takes long
            raise

    monkeypatch.setattr(buffer, "_recent", draw_slowly)
    for number in range(3):
        obs = np.full((1, 2), number, np.float32)
        buffer.add(obs, obs + 1, np.zeros(1, int), np.ones(1), np.zeros(1, bool), [{}])
    assert buffer.sample(MANY).observations.max() == 1, "the episode was truncated, so its last step was drawn"


def test_samples_are_of_all_steps_so_far(new_buffer: NewBuffer) -> None:
    buffer = new_buffer(n_envs=2)
    for number in range(20):
        obs = np.array([[number, 0], [-number, 0]], np.float32)
        buffer.add(obs, obs + np.array([[1, 0], [-1, 0]]), np.zeros(2, int), np.ones(2), np.zeros(2, bool), [{}, {}])
        if number:
            assert buffer.sample(MANY).observations[:, 0].abs().max() == number - 1


@pytest.mark.parametrize(("max_lag_steps", "prefetch"), [(0, None), (0, 16), (1, 1), (7, None), (7, 3), (40, 16)])
def test_samples_miss_at_most_the_newest_steps(new_buffer: NewBuffer, max_lag_steps: int, prefetch: int | None) -> None:
    buffer = new_buffer(n_envs=2, backend="uniform", max_lag_steps=max_lag_steps, prefetch=prefetch)
    rng = np.random.default_rng(max_lag_steps)
    one, no = np.ones(2), np.zeros(2, bool)
    added = 0
    for _ in range(60):
        for _ in range(rng.integers(4)):
            obs = np.array([[added, 0], [-added, 0]], np.float32)
            buffer.add(obs, obs + np.array([[1, 0], [-1, 0]]), one.astype(int), one, no, [{}, {}])
            added += 1
        if added > 1:
            newest_drawable = added - 2  # the next observation of the newest step is not stored yet
            newest_drawn = buffer.sample(10 * MANY).observations[:, 0].abs().max()
            assert newest_drawable - max_lag_steps / 2 <= newest_drawn <= newest_drawable


@pytest.mark.parametrize(("n_envs", "steps"), [(1, 251), (40, 9)])
def test_batches_that_were_requested_before_many_steps_are_not_used(
    new_buffer: NewBuffer, n_envs: int, steps: int
) -> None:
    buffer = new_buffer(n_envs=n_envs, backend="uniform", max_lag_steps=None)
    actions, one, no = np.zeros(n_envs, int), np.ones(n_envs), np.zeros(n_envs, bool)

    def add(number: int) -> None:
        obs = np.full((n_envs, 2), number, np.float32)
        buffer.add(obs, obs + 1, actions, one, no, [{}] * n_envs)

    for number in range(2):
        add(number)
    for _ in range(100):
        assert buffer.sample(10 * MANY).observations.max() == 0
    for number in range(2, 2 + steps):
        add(number)
    assert buffer.sample(10 * MANY).observations.max() == steps, "the newest step that has a next observation"


def test_few_batches_are_drawn_in_vain_if_there_are_many_steps_between_two_batches(new_buffer: NewBuffer) -> None:
    buffer = new_buffer(backend="uniform", max_lag_steps=None)
    obs, one, no = np.zeros((1, 2), np.float32), np.ones(1), np.zeros(1, bool)
    used, until_adapted = 256, 400
    before = 0
    for batch in range(until_adapted + used):
        for _ in range(10):
            buffer.add(obs, obs, one.astype(int), one, no, [{}])
        buffer.sample(4)
        if batch + 1 == until_adapted:
            before = buffer.table.stats().sampled
    assert buffer.table.stats().sampled - before <= 1.2 * used * 4


ACTIONS = [spaces.Box(-1, 1, (2, 2)), spaces.Box(-1, 1, (3,), np.float64), spaces.MultiDiscrete([2, 3])]
PARTS = {
    "image": spaces.Box(0, 255, (3, 5, 5), np.uint8),
    "number": spaces.Discrete(5),
    "numbers": spaces.MultiDiscrete([3, 4]),
    "flags": spaces.MultiBinary(6),
    "exact": spaces.Box(0, 1, (1,), np.float64),
}


@pytest.mark.parametrize("acting", [*ACTIONS, spaces.MultiBinary(3), spaces.Discrete(3)], ids=str)
@pytest.mark.parametrize("n_envs", [1, 2])
def test_samples_have_the_shapes_and_dtypes_of_sb3(
    new_buffer: NewBuffer, acting: spaces.Space[Any], n_envs: int
) -> None:
    observed = spaces.Dict(PARTS)
    expected = DictReplayBuffer(10, observed, acting, "cpu", n_envs)
    buffer = new_buffer(observed, acting, n_envs=n_envs)

    def seen() -> dict[str, Any]:
        return {key: np.stack([np.asarray(space.sample()) for _ in range(n_envs)]) for key, space in PARTS.items()}

    step: Any = (
        np.stack([np.asarray(acting.sample()) for _ in range(n_envs)]),
        np.ones(n_envs),
        np.ones(n_envs, bool),
        [{}] * n_envs,
    )
    obs, next_obs = seen(), seen()
    buffer.add(obs, next_obs, *step)
    expected.add(obs, next_obs, *step)
    ours, theirs = buffer.sample(7), expected.sample(7)
    for mine, other in zip(leaves(ours), leaves(theirs), strict=True):
        assert (mine.dtype, mine.shape, mine.device) == (other.dtype, other.shape, other.device)
    if n_envs == 1:
        assert all(torch.equal(mine, other) for mine, other in zip(leaves(ours), leaves(theirs), strict=True))


def leaves(samples: Any) -> list[torch.Tensor]:
    parts = [part for part in samples if part is not None]
    return [leaf for part in parts for leaf in (part.values() if isinstance(part, dict) else [part])]


def test_boxes_without_axes_are_stored_although_sb3_cannot_index_them(new_buffer: NewBuffer) -> None:
    number = spaces.Box(-np.inf, np.inf, (), np.float32)
    buffer = new_buffer(number, number, n_envs=2)
    seen = np.array([0.5, np.nan], np.float32)
    buffer.add(seen, seen + 1, seen, np.ones(2), np.ones(2, bool), [{}, {}])
    samples = buffer.sample(50)
    assert samples.observations.shape == (50,)
    assert samples.actions.shape == (50, 1)
    assert set(samples.next_observations.nan_to_num(-1).tolist()) == {1.5, -1.0}


@pytest.mark.parametrize("n_steps", [1, 3])
def test_samples_are_normalized_with_current_statistics(new_buffer: NewBuffer, n_steps: int) -> None:
    env: Any = VecNormalize(DummyVecEnv([lambda: gymnasium.make("MountainCarContinuous-v0")]))
    env.ret_rms.var, env.obs_rms.mean, env.obs_rms.var = np.array(4.0), np.array([3.0, 1.0]), np.array([900.0, 1e3])
    returns: dict[str, Any] = {} if n_steps == 1 else {"n_steps": n_steps, "gamma": 0.9}
    kind: Any = ReplayBuffer if n_steps == 1 else NStepReplayBuffer
    expected, buffer = kind(30, BOX, spaces.Discrete(4), "cpu", **returns), new_buffer(**returns)
    for step in steps(1, 30, seed=0):
        expected.add(*step)
        buffer.add(*step)
    assert by_obs(buffer.sample(MANY, env)) == by_obs(expected.sample(8 * MANY, env))
    env.ret_rms.var = np.array(1e-12)  # all rewards are clipped
    limit = 10 * sum(0.9**i for i in range(n_steps))
    assert buffer.sample(MANY, env).rewards.abs().max() == pytest.approx(limit)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("optimize_memory_usage", {"optimize_memory_usage": True}),
    ("observation_space", {"observed": spaces.Tuple([BOX])}),
    ("observation_space", {"observed": spaces.Text(5)}),
    ("observation_space", {"observed": spaces.Dict({"deep": spaces.Dict({"er": BOX})})}),
    ("observation_space", {"observed": spaces.Dict({"text": spaces.Text(5)})}),
    ("action_space", {"acting": spaces.Dict({"a": BOX})}),
    ("action_space", {"acting": spaces.Tuple([BOX])}),
    ("columns", {"observed": spaces.Dict({"what is this?": BOX})}),
    ("backend", {"backend": "fifo"}),
    ("buffer_size", {"buffer_size": 0}),
    ("n_envs", {"n_envs": 0}),
    ("n_steps", {"n_steps": 0}),
    ("gamma", {"n_steps": 3}),
    ("steps.n_step", {"n_steps": 10_000_000, "gamma": 0.9}),
    ("steps.gamma", {"gamma": 1.5}),
    ("beta", {"beta": -1.0}),
    ("prefetch", {"prefetch": 0}),
    ("max_lag_steps", {"max_lag_steps": -1}),
    ("max_lag_steps", {"max_lag_steps": 0.5}),
]


@pytest.mark.parametrize(("field", "options"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_a_table_cannot_honor_is_refused_by_name(
    new_buffer: NewBuffer, client: ReplayClient, name: str, field: str, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        new_buffer(**options)
    assert refusal.value.metadata["field"] == field
    assert name not in client


@pytest.mark.parametrize("option", ["capacity", "columns", "steps", "alhpa"])
def test_what_follows_from_the_spaces_and_what_is_misspelled_are_no_arguments(
    new_buffer: NewBuffer, option: str
) -> None:
    with pytest.raises(TypeError, match=option):
        new_buffer(**{option: 5})


def test_an_address_of_another_kind_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="address: expected host:port, or a ReplayClient, got 5"):
        ServiceReplayBuffer(100, BOX, BOX, address=5, table="t")  # type: ignore[arg-type]


@pytest.mark.parametrize(("algorithm", "replay"), [({"gamma": 0.9}, {"gamma": 0.5}), ({"n_steps": 3}, {"n_steps": 2})])
def test_returns_of_another_algorithm_are_refused(
    in_table: dict[str, Any], client: ReplayClient, name: str, algorithm: dict[str, Any], replay: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgumentError, match=f"kwargs.{next(iter(replay))}: .* as for the algorithm"):
        PrioritizedDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs={**in_table, **replay}, **algorithm)
    assert name not in client


@pytest.mark.parametrize("options", [{"alpha": -1.0}, {"alpha": "x"}, {"backend": "no-such-backend"}])
def test_what_the_server_refuses_is_refused_before_anything_is_stored(
    new_buffer: NewBuffer, client: ReplayClient, name: str, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{next(iter(options))}: "):
        new_buffer(**options).add(*next(steps(1, 5, seed=0)))
    assert name not in client


def test_a_table_with_another_config_is_left_alone(new_buffer: NewBuffer) -> None:
    first = new_buffer()
    first.add(*next(steps(1, 5, seed=0)))
    with pytest.raises(TableExistsError):
        new_buffer(n_steps=2, gamma=0.99).add(*next(steps(1, 5, seed=0)))


def test_a_saved_buffer_goes_on_with_the_same_rows(
    in_table: dict[str, Any], client: ReplayClient, name: str, tmp_path: Path
) -> None:
    model = PrioritizedDQN("MlpPolicy", "CartPole-v1", learning_starts=20, replay_buffer_kwargs=in_table)
    model.learn(60)
    model.save_replay_buffer(tmp_path / "buffer")
    stats = client[name].stats()
    other = PrioritizedDQN("MlpPolicy", "CartPole-v1", learning_starts=20, replay_buffer_kwargs=in_table)
    other.load_replay_buffer(tmp_path / "buffer")
    buffer = other.replay_buffer
    assert isinstance(buffer, ServiceReplayBuffer)
    assert stats.steps is not None
    assert stats.steps.pending == 0
    assert buffer.size() == stats.size >= 60
    keys = np.unique(buffer.sample(2000).row_keys)
    assert len(keys) == stats.steps.drawable == 60
    other.learn(30)
    assert isinstance(other.replay_buffer, ServiceReplayBuffer)
    other.replay_buffer.close()
    assert client[name].size() >= 90
    client.drop_table(name)
    client.create_table(name, columns={"obs": buffer.table.schema["obs"]}, capacity=10)
    with pytest.raises(TableReplacedError):
        pickle.loads((tmp_path / "buffer.pkl").read_bytes()).sample(4)


def test_a_saved_model_acts_without_a_server(tmp_path: Path) -> None:
    nowhere = {"address": "127.0.0.1:1", "table": "nowhere"}
    PrioritizedDQN("MlpPolicy", "CartPole-v1", n_steps=3, replay_buffer_kwargs=nowhere).save(tmp_path / "model")
    model = PrioritizedDQN.load(tmp_path / "model", env=gymnasium.make("CartPole-v1"))
    assert model.beta_initial == 0.4
    assert model.predict(np.zeros(4, np.float32))[0] in (0, 1)
    unreachable = {"address": ReplayClient("127.0.0.1:1", wait_for_server_s=0), "table": "nowhere"}
    with pytest.raises(ServerUnavailableError):
        PrioritizedDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=unreachable).learn(5)


def test_a_reset_buffer_is_empty(new_buffer: NewBuffer) -> None:
    buffer = new_buffer()
    for step in steps(1, 20, seed=0):
        buffer.add(*step)
    buffer.sample(4)
    buffer.reset()
    assert (buffer.size(), buffer.pos) == (0, 0)
    buffer.add(np.full((1, 2), 99.0), *next(steps(1, 2, seed=0))[1:])
    assert set(buffer.sample(4).observations.flatten().tolist()) == {99.0}


@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.filterwarnings("error:`n_steps")
def test_prioritized_dqn_updates_priorities(
    in_table: dict[str, Any], client: ReplayClient, name: str, n_envs: int, n_steps: int
) -> None:
    envs = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * n_envs)
    model = PrioritizedDQN(
        "MlpPolicy", envs, learning_starts=40, n_steps=n_steps, gamma=0.9, replay_buffer_kwargs=in_table
    )
    model.learn(120)
    buffer = model.replay_buffer
    assert isinstance(buffer, ServiceReplayBuffer)
    assert (buffer.table.steps.item.n_step, buffer.table.steps.item.gamma) == (n_steps, 0.9)  # type: ignore[union-attr]
    assert 0.9 < buffer.beta <= 1.0
    buffer.close()
    assert client[name].stats().updated > 0
    assert len(np.unique(client[name].read(np.arange(100)).priorities.round(6))) > 10


def test_losses_are_weighted_and_errors_become_priorities(in_table: dict[str, Any]) -> None:
    model = PrioritizedDQN("MlpPolicy", "CartPole-v1", learning_starts=1000, replay_buffer_kwargs=in_table)
    model.learn(50)
    buffer = model.replay_buffer
    assert isinstance(buffer, ServiceReplayBuffer)
    samples = buffer.sample(32)
    losses, errors = model._losses(samples)
    values = model.q_net(samples.observations).gather(1, samples.actions)
    best = model.q_net_target(samples.next_observations).max(dim=1, keepdim=True).values
    targets = samples.rewards + (1 - samples.dones) * 0.99 * best
    assert losses.mean().item() == pytest.approx(torch.nn.functional.smooth_l1_loss(values, targets).item())
    buffer.update_priorities(samples, errors)
    buffer.close()
    stored = buffer.table.read(samples.row_keys)
    last = {int(key): float(error) for key, error in zip(samples.row_keys, errors.detach().abs(), strict=True)}
    assert {int(key): value for key, value in zip(stored.row_keys, stored.priorities, strict=True)} == pytest.approx(
        last
    )


def test_gradients_are_those_of_weighted_losses(in_table: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = PrioritizedDQN(
        "MlpPolicy", "CartPole-v1", learning_starts=1000, replay_buffer_kwargs=in_table, learning_rate=0.0
    )
    model.learn(20)
    buffer = model.replay_buffer
    assert isinstance(buffer, ServiceReplayBuffer)
    samples = buffer.sample(8)
    samples.weights = torch.zeros(8)
    monkeypatch.setattr(buffer, "sample", lambda *_, **__: samples)
    model.train(1, 8)
    assert all(not parameter.grad.any() for parameter in model.q_net.parameters() if parameter.grad is not None)


def test_qr_dqn_has_the_loss_of_sb3_contrib(in_table: dict[str, Any], client: ReplayClient, name: str) -> None:
    pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed")
    from replay_client.sb3_contrib import PrioritizedQRDQN
    from sb3_contrib.common.utils import quantile_huber_loss

    model = PrioritizedQRDQN("MlpPolicy", "CartPole-v1", learning_starts=30, replay_buffer_kwargs=in_table, seed=0)
    model.learn(60)
    assert isinstance(model.replay_buffer, ServiceReplayBuffer)
    samples = model.replay_buffer.sample(16)
    losses, errors = model._losses(samples)
    actions = samples.actions[..., None].expand(16, model.n_quantiles, 1)
    quantiles = model.quantile_net(samples.observations).gather(2, actions).squeeze(2)
    after = model.quantile_net_target(samples.next_observations)
    greedy = after.mean(dim=1, keepdim=True).argmax(dim=2, keepdim=True).expand(16, model.n_quantiles, 1)
    targets = samples.rewards + (1 - samples.dones) * 0.99 * after.gather(2, greedy).squeeze(2)
    assert losses.mean().item() == pytest.approx(quantile_huber_loss(quantiles, targets).item(), rel=1e-5)
    assert errors.tolist() == pytest.approx((targets - quantiles).mean(dim=1).tolist(), abs=1e-5)
    model.replay_buffer.close()
    assert client[name].stats().updated > 0


def test_prioritized_algorithms_need_this_buffer() -> None:
    with pytest.raises(InvalidArgumentError, match="replay_buffer_class"):
        PrioritizedDQN("MlpPolicy", "CartPole-v1", replay_buffer_class=ReplayBuffer)


@pytest.mark.parametrize("n_steps", [1, 3])
def test_sac_learns_from_dicts_and_normalized_environments(in_table: dict[str, Any], n_steps: int) -> None:
    env = VecNormalize(DummyVecEnv([Reach, Reach]), norm_obs_keys=["at"])
    options = {**in_table, "n_steps": n_steps, "gamma": 0.99}
    model = SAC(
        "MultiInputPolicy",
        env,
        learning_starts=20,
        batch_size=16,
        replay_buffer_class=ServiceReplayBuffer,
        replay_buffer_kwargs=options,
        policy_kwargs={"net_arch": [16]},
    )
    model.learn(60)
    buffer = model.replay_buffer
    assert isinstance(buffer, ServiceReplayBuffer)
    assert set(buffer.table.schema) == {"obs/at", "obs/near", "action", "reward"}
    raw: Any = buffer.sample(64)
    assert raw.observations["at"].abs().max() > 1
    assert np.all(raw.rewards.numpy() < 0)


def test_runs_with_the_same_seeds_repeat(in_table: dict[str, Any], client: ReplayClient, name: str) -> None:
    drawn = []
    for _ in range(2):
        model = PrioritizedDQN(
            "MlpPolicy",
            "CartPole-v1",
            learning_starts=20,
            seed=5,
            replay_buffer_kwargs={**in_table, "max_lag_steps": 0},
        )
        model.learn(60)
        assert model.replay_buffer is not None
        drawn.append(model.replay_buffer.sample(16))
        client.drop_table(name)
    assert torch.equal(drawn[0].observations, drawn[1].observations)


def test_other_actors_can_share_the_table(new_buffer: NewBuffer) -> None:
    learner, actor = new_buffer(), new_buffer()
    given: list[NDArray[Any]] = []
    for step in steps(1, 20, seed=3):
        actor.add(*step)
        given.append(step[0][0])
    actor.close()
    samples: ServiceSamples = learner.sample(MANY)
    np.testing.assert_array_equal(np.unique(samples.observations.numpy()[:, 0]), np.sort([obs[0] for obs in given]))


@pytest.mark.parametrize("algorithm", ["TD3", "CrossQ"])
def test_every_algorithm_for_continuous_actions_takes_the_buffer(
    in_table: dict[str, Any], client: ReplayClient, name: str, algorithm: str
) -> None:
    library = pytest.importorskip("sb3_contrib" if algorithm in ("TQC", "CrossQ") else "stable_baselines3")
    model = getattr(library, algorithm)(
        "MlpPolicy",
        "Pendulum-v1",
        learning_starts=10,
        batch_size=16,
        replay_buffer_class=ServiceReplayBuffer,
        replay_buffer_kwargs=in_table,
        policy_kwargs={"net_arch": [8]},
    )
    model.learn(30)
    assert client[name].stats().sampled >= 16 * 19
