"""An actor with several environments plays in each of them as if it were alone."""

from __future__ import annotations

import signal
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from replay_agent.acting.actor import Actor, Step
from replay_agent.acting.environments import make_environment, make_environments
from replay_agent.acting.evaluation import evaluate
from replay_agent.acting.seeds import environment_seed
from replay_agent.acting.step_guard import EnvironmentFailedError, guarded
from replay_agent.atari_options import AtariOptions
from replay_agent.dqn.networks import NetworkSpec, build_network
from replay_agent.r2d2 import build_recurrent_network

from tests.agent.corridor import CORRIDOR_ID, PLACES, Corridor

pytestmark = pytest.mark.filterwarnings("ignore:.*share an object:UserWarning")

ENVIRONMENTS = 3
PONG = "ALE/Pong-v5"
CARTPOLE = NetworkSpec((4,), "float32", 2, (8,), dueling=False)


def taken_by(actor: Actor, count: int, epsilon: float) -> list[list[Step]]:
    """Steps by environment."""
    taken = [actor.step(epsilon) for _ in range(count)]
    actor.close()
    return [list(steps) for steps in zip(*taken, strict=True)]


def test_each_environment_has_the_steps_that_it_would_have_alone() -> None:
    torch.manual_seed(0)
    network, seed = build_network(CARTPOLE), 7
    by_environment = taken_by(Actor("CartPole-v1", seed, network, environments=ENVIRONMENTS), 200, epsilon=0.0)
    for number, steps in enumerate(by_environment):
        env = make_environment("CartPole-v1")
        obs, _ = env.reset(seed=environment_seed(seed) + number)
        for step in steps:
            with torch.no_grad():
                best = int(network(torch.as_tensor(obs[np.newaxis])).argmax())
            after, reward, terminated, truncated, _ = env.step(best)
            np.testing.assert_array_equal(step.obs, obs)
            np.testing.assert_array_equal(step.next_obs, after)
            assert (step.action, step.reward, step.terminated, step.truncated) == (best, reward, terminated, truncated)
            obs = env.reset()[0] if terminated or truncated else after
        env.close()
    assert any(step.is_last for step in by_environment[0])


def test_environments_have_actions_and_episodes_of_their_own() -> None:
    actor = Actor("CartPole-v1", 7, build_network(CARTPOLE), environments=ENVIRONMENTS)
    lengths: list[list[int]] = [[] for _ in range(ENVIRONMENTS)]
    running = np.zeros(ENVIRONMENTS, int)
    for _ in range(300):
        running += 1
        for number, step in enumerate(actor.step(0.5)):
            episode = step.episode
            assert (episode is not None) == step.is_last
            if episode is not None:
                assert (episode.length, episode.episode_return) == (running[number], running[number])
                lengths[number].append(episode.length)
                running[number] = 0
    actor.close()
    assert lengths[0] != lengths[1] != lengths[2]


def test_the_state_of_a_recurrent_network_is_that_of_its_environment() -> None:
    torch.manual_seed(0)
    network = build_recurrent_network(NetworkSpec((PLACES,), "float32", 2, (4,), False, lstm_units=3))
    actor = Actor(CORRIDOR_ID, 1, network, environments=ENVIRONMENTS)
    for steps in taken_by(actor, 100, epsilon=0.7):
        state = torch.zeros(1, *network.state_shape)
        assert any(step.is_last for step in steps)
        for step in steps:
            assert step.state == pytest.approx(state[0].numpy(), abs=1e-6)
            with torch.no_grad():
                state = network.act(torch.as_tensor(step.obs[np.newaxis]), state)[1]
            state[0, 2 * 3 + step.action], state[0, -1] = 1.0, step.reward
            state = torch.zeros_like(state) if step.is_last else state


def test_estimated_values_are_those_of_the_steps_own_observations() -> None:
    torch.manual_seed(0)
    network = build_network(NetworkSpec((PLACES,), "float32", 2, (4,), dueling=False))
    actor = Actor(CORRIDOR_ID, 1, network, environments=ENVIRONMENTS, estimates=True)
    for steps in taken_by(actor, 100, epsilon=0.3):
        for step in steps:
            with torch.no_grad():
                before, after = network(torch.as_tensor(np.stack([step.obs, step.next_obs])))
            assert step.value == pytest.approx(before[step.action].item(), abs=1e-6)
            assert step.next_value == pytest.approx(0.0 if step.terminated else after.max().item(), abs=1e-6)
        assert {step.terminated for step in steps} == {True, False}


class Failing(Corridor):
    """Fails in its seventh step, in one of several ways."""

    failure = "raises"
    steps = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, *ends, info = super().step(action)
        self.steps += 1
        if self.steps == 7:
            if self.failure == "raises":
                raise ConnectionError("no simulator")
            if self.failure == "hangs":
                threading.Event().wait()
            if self.failure == "reward":
                reward = float("nan")
            else:
                obs = np.full_like(obs, np.inf)
        return obs, reward, ends[0], ends[1], info


def make_failing() -> gymnasium.Env[Any, Any]:
    return Failing()


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("raises", r"test_actors:make_failing failed in a step or a reset: ConnectionError: no simulator"),
        ("hangs", r"test_actors:make_failing hangs: a step or a reset has taken 0.2 s"),
        ("reward", r"test_actors:make_failing returned a reward that is not finite, in step \d of an episode: nan"),
        ("observation", r"make_failing returned an observation that is not finite, in step \d of an episode: \[inf"),
    ],
)
def test_an_environment_that_fails_is_named(failure: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failing, "failure", failure)
    network = build_network(NetworkSpec((PLACES,), "float32", 2, (4,), dueling=False))
    actor = Actor(f"{__name__}:make_failing", 1, network, environments=2, step_timeout_s=0.2)
    for _ in range(6):
        actor.step(0.0)
    with pytest.raises(EnvironmentFailedError, match=message):
        actor.step(0.0)
    actor.close()


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("raises", r"Failing failed in a step or a reset"),
        ("hangs", r"Failing hangs: a step or a reset has taken 0.2 s"),
    ],
)
def test_an_environment_that_fails_in_an_evaluation_is_named(
    failure: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failing, "failure", failure)
    network = build_network(NetworkSpec((PLACES,), "float32", 2, (4,), dueling=False))
    with pytest.raises(EnvironmentFailedError, match=message):
        evaluate(network, make_failing, range(20), epsilon=1.0, step_timeout_s=0.2)


def test_an_environment_that_hangs_in_its_reset_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failing, "reset", lambda *_, **__: threading.Event().wait())
    network = build_network(NetworkSpec((PLACES,), "float32", 2, (4,), dueling=False))
    with pytest.raises(EnvironmentFailedError, match="make_failing hangs"):
        Actor(f"{__name__}:make_failing", 1, network, step_timeout_s=0.2)
    with pytest.raises(EnvironmentFailedError, match="Failing hangs"):
        evaluate(network, make_failing, [1], step_timeout_s=0.2)


def test_the_callers_own_timer_goes_off_although_steps_are_guarded() -> None:
    def ring(*_: object) -> None:
        raise TimeoutError

    def step_for_ever() -> None:
        while True:
            with guarded("steps"):
                pass

    earlier_handler, earlier_timer = signal.signal(signal.SIGALRM, ring), signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(TimeoutError):
            step_for_ever()
    finally:
        signal.setitimer(signal.ITIMER_REAL, *earlier_timer)
        signal.signal(signal.SIGALRM, earlier_handler)


@pytest.mark.parametrize("episodic_life", [False, True])
@pytest.mark.parametrize("game", [PONG, "ALE/Breakout-v5"])
def test_a_vector_of_games_is_like_single_games(game: str, *, episodic_life: bool) -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    options = AtariOptions(sticky_actions=0.0, noop_max=0, episodic_life=episodic_life)
    envs, alone = make_environments(game, 2, options), make_environment(game, options)
    together, (obs, _) = envs.reset(seed=3)[0], alone.reset(seed=3)
    random, ended = np.random.default_rng(0), False
    for _ in range(1_200):
        np.testing.assert_array_equal(together[0], obs)
        actions = random.integers(alone.action_space.n, size=2)  # type: ignore[attr-defined]
        together, rewards, terminated, truncated, infos = envs.step(actions)
        obs, reward, *ends, _ = alone.step(int(actions[0]))
        assert [rewards[0], terminated[0], truncated[0]] == [reward, *ends]
        if any(ends):
            np.testing.assert_array_equal(infos["final_obs"][0], obs)
            ended = True
            break
    assert ended
    assert (together[0][:3] == 0).all()  # stacks are filled with zeros, as the table does it
    assert together[0][3].any()
    envs.close()
    alone.close()
