"""All of Gymnasium's wrappers around and inside `RecordSteps`: what is stored is what `env.step` gives there.

Every wrapper that the installed Gymnasium ships is named here, or the test fails. What cannot stand there is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import MagicMock

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces, wrappers
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import vector
from replay_client import InvalidArgumentError, ReplayClient, Table
from replay_client.gymnasium import RecordSteps

from tests.integrations.random_spaces import RandomEnv, Rng, random_value, stacked
from tests.integrations.same_as_libraries import steps_table, table_name
from tests.integrations.watched_envs import Watched, WatchedVector, noted, stored
from tests.support.examples import examples
from tests.support.server_process import ServerProcess

jax: Any = pytest.importorskip("jax", reason="jax is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Gymnasium, about these environments

Wrap = Callable[[Any], Any]
PICTURE: Final = spaces.Box(0, 255, (8, 8, 3), np.uint8)
NUMBERS: Final = spaces.Box(-1, 1, (3,), np.float32)
BOTH: Final = spaces.Dict({"picture": PICTURE, "numbers": NUMBERS})
FORCE: Final = spaces.Box(-1, 1, (2,), np.float32)
STEPS: Final = 24


class Rendered(RandomEnv):
    """A random environment with pictures of itself."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012
    render_mode = "rgb_array"

    def render(self) -> Any:
        return np.full((8, 8, 3), len(self.made), np.uint8)


def pictures(seed: int) -> Any:
    return Rendered(seed, PICTURE, FORCE)


def numbers(seed: int) -> Any:
    return Rendered(seed, NUMBERS, FORCE)


def both(seed: int) -> Any:
    return Rendered(seed, BOTH, FORCE)


def on_jax(seed: int) -> Any:
    return wrappers.ArrayConversion(pictures(seed), np, jax.numpy)


def pong(_: int) -> Any:
    pytest.importorskip("ale_py", reason="ale-py is not installed")
    return gymnasium.make("ALE/Pong-v5", frameskip=1, max_episode_steps=9)


def doubled(value: Any) -> Any:
    return 2 * value


def doubled_in_place(action: Any) -> Any:
    return np.multiply(2, action, out=action)


def limited(env: Any, steps: int) -> Any:
    return wrappers.TimeLimit(env, steps)


WRAPPERS: Final[dict[str, Wrap]] = {
    "AddRenderObservation": lambda env: wrappers.AddRenderObservation(env, False),
    "AddWhiteNoise": lambda env: wrappers.AddRenderObservation(wrappers.AddWhiteNoise(env, 0.5)),
    "ArrayConversion": lambda env: wrappers.ArrayConversion(env, np, torch),
    "AtariPreprocessing": lambda env: wrappers.AtariPreprocessing(env, noop_max=3, frame_skip=2, screen_size=8),
    "Autoreset": wrappers.Autoreset,
    "ClipAction": wrappers.ClipAction,
    "ClipReward": lambda env: wrappers.ClipReward(env, -5, 5),
    "DelayObservation": lambda env: wrappers.DelayObservation(env, 2),
    "DiscretizeAction": lambda env: wrappers.DiscretizeAction(env, 5),
    "DiscretizeObservation": lambda env: wrappers.DiscretizeObservation(env, 5),
    "DtypeObservation": lambda env: wrappers.DtypeObservation(env, np.float32),
    "FilterObservation": lambda env: wrappers.FilterObservation(env, ["numbers"]),
    "FlattenObservation": wrappers.FlattenObservation,
    "FrameStackObservation": lambda env: wrappers.FrameStackObservation(env, 3),
    "GrayscaleObservation": wrappers.GrayscaleObservation,
    "HumanRendering": wrappers.HumanRendering,
    "JaxToNumpy": lambda env: wrappers.JaxToNumpy(env),
    "JaxToTorch": lambda env: wrappers.JaxToTorch(env),
    "MaxAndSkipObservation": lambda env: wrappers.MaxAndSkipObservation(env, 2),
    "NormalizeObservation": wrappers.NormalizeObservation,
    "NormalizeReward": wrappers.NormalizeReward,
    "NumpyToTorch": lambda env: wrappers.NumpyToTorch(env),
    "ObstructView": lambda env: wrappers.AddRenderObservation(wrappers.ObstructView(env, 0.5, 2)),
    "OrderEnforcing": wrappers.OrderEnforcing,
    "PassiveEnvChecker": wrappers.PassiveEnvChecker,
    "RecordEpisodeStatistics": wrappers.RecordEpisodeStatistics,
    "RecordVideo": lambda env: wrappers.RecordVideo(env, "videos", gc_trigger=None),
    "RenderCollection": wrappers.RenderCollection,
    "RepeatAction": lambda env: wrappers.RepeatAction(env, 2),
    "RescaleAction": lambda env: wrappers.RescaleAction(env, np.float32(0), np.float32(1)),
    "RescaleObservation": lambda env: wrappers.RescaleObservation(env, np.uint8(0), np.uint8(1)),
    "ReshapeObservation": lambda env: wrappers.ReshapeObservation(env, (64, 3)),
    "ResizeObservation": lambda env: wrappers.ResizeObservation(env, (4, 4)),
    "StickyAction": lambda env: wrappers.StickyAction(env, 0.5),
    "TimeAwareObservation": lambda env: wrappers.TimeAwareObservation(limited(env, 4), flatten=False),
    "TimeLimit": lambda env: limited(env, 3),
    "TransformAction": lambda env: wrappers.TransformAction(env, doubled_in_place, env.action_space),
    "TransformObservation": lambda env: wrappers.TransformObservation(env, doubled, env.observation_space),
    "TransformReward": lambda env: wrappers.TransformReward(env, doubled),
}
MAKERS: Final[dict[str, Callable[[int], Any]]] = {
    "AtariPreprocessing": pong,
    "DiscretizeObservation": numbers,
    "FilterObservation": both,
    "JaxToNumpy": on_jax,
    "JaxToTorch": on_jax,
}
"""The environment of a wrapper, unless pictures suit it."""
SEVERAL_STEPS: Final = {"AtariPreprocessing", "MaxAndSkipObservation", "RepeatAction"}
"""Each step is several steps of the wrapped environment, which a reset in between would mix up."""
LIMITS: Final = {"TimeAwareObservation", "TimeLimit"}
"""They count on after a reset that `Autoreset` inside makes, and want to be reset themselves."""

PLACES: Final[dict[str, Callable[[Wrap, Wrap, Any], Any]]] = {
    "inside": lambda wrap, record, env: record(wrap(env)),
    "inside, around Autoreset": lambda wrap, record, env: record(wrap(wrappers.Autoreset(env))),
    "inside, inside Autoreset": lambda wrap, record, env: record(wrappers.Autoreset(wrap(env))),
    "around": lambda wrap, record, env: wrap(record(env)),
    "around, with Autoreset innermost": lambda wrap, record, env: wrap(record(wrappers.Autoreset(env))),
    "around, with Autoreset between": lambda wrap, record, env: wrap(wrappers.Autoreset(record(env))),
    "around, with Autoreset outermost": lambda wrap, record, env: wrappers.Autoreset(wrap(record(env))),
}

VECTOR_WRAPPERS: Final[dict[str, Wrap]] = {
    "ArrayConversion": lambda envs: vector.ArrayConversion(envs, np, torch),
    "ClipAction": vector.ClipAction,
    "ClipReward": lambda envs: vector.ClipReward(envs, -5, 5),
    "DictInfoToList": vector.DictInfoToList,
    "DtypeObservation": lambda envs: vector.DtypeObservation(envs, np.float32),
    "FilterObservation": lambda envs: vector.FilterObservation(envs, ["numbers"]),
    "FlattenObservation": vector.FlattenObservation,
    "GrayscaleObservation": vector.GrayscaleObservation,
    "HumanRendering": vector.HumanRendering,
    "JaxToNumpy": lambda envs: vector.JaxToNumpy(envs),
    "JaxToTorch": lambda envs: vector.JaxToTorch(envs),
    "NormalizeObservation": vector.NormalizeObservation,
    "NormalizeReward": vector.NormalizeReward,
    "NumpyToTorch": lambda envs: vector.NumpyToTorch(envs),
    "RecordEpisodeStatistics": vector.RecordEpisodeStatistics,
    "RecordVideo": lambda envs: vector.RecordVideo(envs, "videos", gc_trigger=None),
    "RescaleAction": lambda envs: vector.RescaleAction(envs, np.zeros(2, np.float32), np.ones(2, np.float32)),
    "RescaleObservation": lambda envs: vector.RescaleObservation(envs, np.uint8(0), np.uint8(1)),
    "ReshapeObservation": lambda envs: vector.ReshapeObservation(envs, (64, 3)),
    "ResizeObservation": lambda envs: vector.ResizeObservation(envs, (4, 4)),
    "TransformAction": lambda envs: vector.TransformAction(envs, doubled_in_place),
    "TransformObservation": lambda envs: vector.TransformObservation(envs, doubled_in_place),
    "TransformReward": lambda envs: vector.TransformReward(envs, doubled_in_place),
    "VectorizeTransformAction": lambda envs: vector.VectorizeTransformAction(
        envs, wrappers.TransformAction, func=doubled, action_space=FORCE
    ),
    "VectorizeTransformObservation": lambda envs: vector.VectorizeTransformObservation(
        envs, wrappers.TransformObservation, func=doubled, observation_space=PICTURE
    ),
    "VectorizeTransformReward": lambda envs: vector.VectorizeTransformReward(
        envs, wrappers.TransformReward, func=doubled
    ),
}
ON_JAX: Final = {"JaxToNumpy", "JaxToTorch"}
CONVERSIONS: Final = ON_JAX | {"ArrayConversion", "NumpyToTorch"}


def test_every_wrapper_of_gymnasium_is_named_here() -> None:
    """If one is missing: name it, or say why it cannot stand there and test how it is refused."""
    assert set(WRAPPERS) == set(wrappers.__all__) - {"vector"}
    assert set(VECTOR_WRAPPERS) == set(vector.__all__)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[ReplayClient]:
    with ReplayClient(server.address) as made:
        yield made


@pytest.fixture(autouse=True)
def _no_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for what shows and encodes pictures, which no row depends on."""
    monkeypatch.chdir(tmp_path)
    for name in ("moviepy", "moviepy.video.io.ImageSequenceClip", "pygame"):
        monkeypatch.setitem(sys.modules, name, MagicMock())


class Recorder:
    """Records environments in a new table, and notes what they give there."""

    def __init__(self, client: ReplayClient, stack: ExitStack) -> None:
        self._client, self._stack = client, stack
        self.watched: Watched | WatchedVector
        self.table: Table

    def __call__(self, envs: Any) -> Any:
        is_vector = isinstance(envs, VectorEnv)
        seen, acting = (
            (envs.single_observation_space, envs.single_action_space)
            if is_vector
            else (envs.observation_space, envs.action_space)
        )
        self.table = steps_table(self._client, self._stack.enter_context(table_name(self._client)), seen, acting)
        self._writer = self._stack.enter_context(self.table.writer(streams=envs.num_envs if is_vector else 1))
        self.watched = WatchedVector(envs) if is_vector else Watched(envs)
        return RecordSteps(self.watched, self._writer)

    def check(self) -> None:
        """All that was noted was stored, and nothing else."""
        self._writer.flush()
        expected = noted(self.watched, self.table)
        assert len(expected) > 1
        assert stored(self.table) == expected


@contextmanager
def recorder(client: ReplayClient, note: str) -> Iterator[Recorder]:
    with ExitStack() as stack:
        try:
            yield Recorder(client, stack)
        except BaseException as error:
            error.add_note(note)
            raise


def run(env: Any, rng: Rng, *, resets: bool) -> int:
    """Step an environment, and reset it after each episode if nothing else does; count the resets it asked for."""
    obs, _ = env.reset(seed=0)
    asked = 0
    for _ in range(STEPS):
        try:
            obs, _, terminated, truncated, _ = env.step(as_of(obs, random_value(rng, env.action_space)))
        except ResetNeeded:
            asked += 1
            env.reset()
            continue
        if resets and (terminated or truncated):
            env.reset()
    return asked


def run_vector(envs: Any, rng: Rng) -> None:
    """Step environments, and reset those that do not do so themselves."""
    obs, _ = envs.reset(seed=0)
    for _ in range(STEPS):
        actions = stacked([random_value(rng, envs.single_action_space) for _ in range(envs.num_envs)])
        obs, _, terminated, truncated, _ = envs.step(as_of(obs, actions))
        is_over = np.asarray(terminated) | np.asarray(truncated)
        if envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED and is_over.any():
            envs.reset(options={"reset_mask": is_over})


def as_of(obs: Any, action: Any) -> Any:
    """An action as an array of the library that observations come from."""
    if isinstance(obs, torch.Tensor):
        return torch.as_tensor(action)
    return jax.numpy.asarray(action) if isinstance(obs, jax.Array) else action


@pytest.mark.parametrize("name", WRAPPERS)
def test_what_a_wrapper_gives_is_recorded(client: ReplayClient, name: str) -> None:
    for (place, stand), seed in [(item, seed) for item in PLACES.items() for seed in range(examples(1))]:
        rng, env = np.random.default_rng(seed), MAKERS.get(name, pictures)(seed)
        with recorder(client, f"{place}, seed {seed}") as record:
            if name in SEVERAL_STEPS and place == "inside, around Autoreset":
                with pytest.raises(InvalidArgumentError, match=r"envs: expected Autoreset around .*, got .*\(Autores"):
                    stand(WRAPPERS[name], record, env)
                continue
            asked = run(stand(WRAPPERS[name], record, env), rng, resets="Autoreset" not in place)
            assert bool(asked) == (name in LIMITS and place == "inside, around Autoreset")
            record.check()


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("name", VECTOR_WRAPPERS)
def test_what_a_wrapper_of_vector_environments_gives_is_recorded(
    client: ReplayClient, name: str, mode: AutoresetMode
) -> None:
    wrap, refusal = VECTOR_WRAPPERS[name], refused_by_gymnasium(name, mode)
    maker = both if name == "FilterObservation" else pictures
    for is_inside, seed in [(is_inside, seed) for is_inside in (True, False) for seed in range(examples(1))]:
        rng = np.random.default_rng(seed)
        made = [partial(maker, int(rng.integers(2**32))) for _ in range(rng.integers(1, 5))]
        envs: Any = SyncVectorEnv(made, autoreset_mode=mode)
        envs = vector.ArrayConversion(envs, np, jax.numpy) if name in ON_JAX else envs
        with recorder(client, f"{'inside' if is_inside else 'around'}, seed {seed}") as record:
            with pytest.raises(refusal) if refusal else nullcontext():
                run_vector(record(wrap(envs)) if is_inside else wrap(record(envs)), rng)
            if refusal is None:
                record.check()


def refused_by_gymnasium(name: str, mode: AutoresetMode) -> type[Exception] | None:
    """Which error says that a wrapper cannot give final observations, or steps after a reset of some environments."""
    if mode is AutoresetMode.SAME_STEP and name in CONVERSIONS:
        return BufferError
    is_refused = mode is AutoresetMode.SAME_STEP and name.endswith("Observation")
    is_refused |= mode is AutoresetMode.DISABLED and name == "NormalizeObservation"
    return ValueError if is_refused else None


@pytest.mark.parametrize("mode", AutoresetMode)
def test_environments_of_a_vector_environment_are_recorded_one_by_one(
    client: ReplayClient, mode: AutoresetMode
) -> None:
    with ExitStack() as stack:
        records = [Recorder(client, stack) for _ in range(3)]
        makers = [partial(record, pictures(seed)) for seed, record in enumerate(records)]
        run_vector(SyncVectorEnv(makers, autoreset_mode=mode), np.random.default_rng(0))
        for record in records:
            record.check()
