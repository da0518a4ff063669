from __future__ import annotations

import math
import sys
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers import FrameStackObservation, MaxAndSkipObservation, TimeLimit
from replay_agent.acting import actor as acting
from replay_agent.acting.actor import Actor
from replay_agent.acting.environments import (
    UnsupportedEnvironmentError,
    describe_environment,
    inspect_environment,
    make_environment,
)
from replay_agent.acting.evaluation import EvaluationStoppedError, evaluate
from replay_agent.dqn.networks import NetworkSpec, QNetwork, build_network
from torch import nn

from tests.agent.corridor import (
    BEST_RETURN,
    CONTINUOUS_ID,
    CORRIDOR_ID,
    NUMBERED_ID,
    PLACES,
    RICH_ID,
    RICHES,
    STACK,
    STACKED_ID,
    STEP_REWARD,
    TIME_LIMIT,
    Corridor,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*share an object:UserWarning")


def always(action: int) -> QNetwork:
    """A network that prefers the same action for every observation."""
    network = build_network(NetworkSpec((PLACES,), "float32", 2, (4,), dueling=False))
    assert isinstance(network.head, nn.Sequential)
    assert isinstance(network.head.layer, nn.Linear)
    with torch.no_grad():
        network.head.layer.weight.zero_()
        network.head.layer.bias.copy_(torch.tensor([1.0 - action, float(action)]))
    return network


def test_an_environment_is_described() -> None:
    info = inspect_environment("CartPole-v1")
    assert (info.observation_shape, info.observation_dtype, info.actions) == ((4,), "float32", 2)
    assert info.bounds.high == pytest.approx((4.8, math.inf, 0.41887903, math.inf))
    assert info.bounds.low == tuple(-high for high in info.bounds.high)


def test_stacked_frames_are_found_below_wrappers_that_leave_observations_alone() -> None:
    info = inspect_environment(STACKED_ID)
    assert (info.stack, info.padding, info.frame_shape) == (STACK, "repeat", (PLACES,))
    info = describe_environment(TimeLimit(FrameStackObservation(Corridor(), 2, padding_type="zero"), 9), "zeros")
    assert (info.stack, info.padding, info.frame_shape) == (2, "zero", (PLACES,))


@pytest.mark.parametrize(
    "env",
    [
        pytest.param(Corridor(), id="no stack"),
        pytest.param(FrameStackObservation(Corridor(), 1), id="stack of one"),
        pytest.param(FrameStackObservation(Corridor(), 3, padding_type=np.ones(PLACES, np.float32)), id="own padding"),
        pytest.param(MaxAndSkipObservation(FrameStackObservation(Corridor(), 3)), id="stacks change outside"),
    ],
)
def test_stacks_that_cannot_be_restored_from_their_frames_count_as_one_frame(env: gymnasium.Env[Any, Any]) -> None:
    info = describe_environment(env, "some")
    assert (info.stack, info.frame_shape) == (1, env.observation_space.shape)


@pytest.mark.parametrize(
    ("env_id", "complaint"),
    [
        (CONTINUOUS_ID, "DQN needs a Discrete action space"),
        (NUMBERED_ID, "needs a Box observation space"),
        ("Nothing-v0", "could not make the environment 'Nothing-v0'"),
        ("no_such_module:Nothing-v0", "could not make the environment"),
    ],
)
def test_an_environment_that_does_not_suit_is_refused_with_a_reason(env_id: str, complaint: str) -> None:
    with pytest.raises(UnsupportedEnvironmentError, match=complaint):
        inspect_environment(env_id)


def test_atari_games_without_their_package_are_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(UnsupportedEnvironmentError, match=r"replay-service\[atari\]"):
        make_environment("ALE/Pong-v5")


def test_evaluation_plays_one_greedy_episode_per_seed() -> None:
    result = evaluate(always(1), lambda: make_environment(CORRIDOR_ID), range(45))
    assert result.returns.tolist() == pytest.approx([BEST_RETURN] * 45)
    assert result.lengths.tolist() == [PLACES - 1] * 45


def test_evaluation_depends_on_nothing_but_network_and_seeds() -> None:
    torch.manual_seed(0)
    network = build_network(NetworkSpec((4,), "float32", 2, (8,), dueling=False))
    seeds = list(range(100, 130))
    together = evaluate(network, lambda: make_environment("CartPole-v1"), seeds)
    alone = [evaluate(network, lambda: make_environment("CartPole-v1"), [seed]).mean for seed in seeds]
    assert together.returns.tolist() == alone


def test_evaluation_may_take_random_actions_that_depend_on_the_seed_alone() -> None:
    seeds = list(range(20))
    greedy, random, again = (
        evaluate(always(1), lambda: make_environment(CORRIDOR_ID), seeds, epsilon=epsilon)
        for epsilon in (0.0, 0.5, 0.5)
    )
    assert random.lengths.mean() > greedy.lengths.mean()
    assert random.lengths.tolist() == again.lengths.tolist()
    assert len({*random.lengths.tolist()}) > 1
    alone = evaluate(always(1), lambda: make_environment(CORRIDOR_ID), seeds[7:8], epsilon=0.5)
    assert alone.lengths.tolist() == random.lengths[7:8].tolist()


def test_clipped_rewards_are_learned_and_returns_are_those_of_the_environment() -> None:
    actor = Actor(RICH_ID, 0, always(1), clips_rewards=True)
    steps = [actor.step(epsilon=0.0)[0] for _ in range(PLACES - 1)]
    assert {step.reward for step in steps} == {-1.0, 1.0}
    assert steps[-1].episode is not None
    assert steps[-1].episode.episode_return == pytest.approx(RICHES * BEST_RETURN)
    actor.close()


def test_evaluation_breaks_off_when_told() -> None:
    with pytest.raises(EvaluationStoppedError):
        evaluate(always(0), lambda: make_environment(CORRIDOR_ID), [1], should_stop=lambda: True)


def test_a_truncated_episode_goes_into_the_table_with_its_true_last_observation() -> None:
    actor = Actor(CORRIDOR_ID, 0, always(0))
    steps = [actor.step(epsilon=0.0)[0] for _ in range(TIME_LIMIT)]
    last = steps[-1]
    assert last.episode is not None
    assert last.episode.length == TIME_LIMIT
    assert last.episode.episode_return == pytest.approx(TIME_LIMIT * STEP_REWARD)
    assert (last.terminated, last.truncated) == (False, True)
    actor.close()


def test_a_terminated_episode_ends_without_bootstrap_and_the_next_one_begins_anew() -> None:
    actor = Actor(CORRIDOR_ID, 0, always(1))
    steps = [actor.step(epsilon=0.0)[0] for _ in range(PLACES)]
    reached, first_of_next = steps[-2], steps[-1]
    assert reached.terminated
    assert np.argmax(reached.next_obs) == PLACES - 1
    assert np.argmax(first_of_next.obs) == 0
    actor.close()


def test_epsilon_decides_how_often_an_action_is_random() -> None:
    actor = Actor(CORRIDOR_ID, 0, always(1))
    actions = [actor.step(epsilon=0.5)[0].action for _ in range(3000)]
    # Half of the actions are random, and half of those would have been chosen anyway.
    assert np.mean(actions) == pytest.approx(0.75, abs=0.04)
    actor.close()


def test_an_actor_of_the_same_seed_plays_the_same_episodes() -> None:
    network = build_network(NetworkSpec((4,), "float32", 2, (8,), False))
    played = []
    for seed in (5, 5, 6):
        actor = Actor("CartPole-v1", seed, network)
        steps = [actor.step(1.0)[0] for _ in range(60)]
        played.append([(step.obs.tolist(), step.action) for step in steps])
        actor.close()
    assert played[0] == played[1]
    assert played[0] != played[2]


def test_exploration_does_not_know_the_observation_after_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    network = build_network(NetworkSpec((4,), "float32", 2, (8,), False))
    first_uniforms: list[list[float]] = []

    class Spy(acting.EpsilonGreedyPolicy):
        def __init__(self, network: QNetwork, actions: int, rng: np.random.Generator, *others: Any) -> None:
            super().__init__(network, actions, rng, *others)
            first_uniforms.append(deepcopy(rng).random(4).tolist())

    monkeypatch.setattr(acting, "EpsilonGreedyPolicy", Spy)
    observations = []
    for seed in range(200):
        actor = Actor("CartPole-v1", seed, network)
        observations.append(actor.step(1.0)[0].obs)
        actor.close()
    drawn, seen = np.array(first_uniforms), np.array(observations)
    # CartPole starts at a uniform point of [-0.05, 0.05]^4: with a shared stream these would be equal.
    assert not np.isclose(drawn * 0.1 - 0.05, seen, atol=1e-6).all(axis=1).any()
    correlations = np.corrcoef(drawn.T, seen.T)[:4, 4:]
    assert np.abs(correlations).max() < 0.3  # four standard errors of 200 independent pairs


def test_an_evaluation_counts_actions_from_the_environments_own_first_one() -> None:
    taken: list[int] = []

    class Told(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: int) -> Any:
            taken.append(action)
            return self.env.step(action - 5)

    evaluate(always(1), lambda: Told(make_environment(CORRIDOR_ID)), [1], first_action=5)
    assert set(taken) == {6}
