"""Plays with the best network of a run: `replay-eval` and `replay-play`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from replay_agent.acting.actor import EpsilonGreedyPolicy
from replay_agent.acting.environments import Environment, UnsupportedEnvironmentError, make_environment
from replay_agent.acting.evaluation import EvaluationResult, evaluate
from replay_agent.acting.seeds import evaluated_exploration
from replay_agent.dqn.c51 import C51
from replay_agent.dqn.double_dqn import DoubleDQN
from replay_agent.dqn.learner import Learner
from replay_agent.dqn.saved_agents import SavedAgent, SavedAgentError
from replay_agent.own_parts import OwnPartError, find
from replay_agent.r2d2 import R2D2

FAILURES = (OwnPartError, SavedAgentError, UnsupportedEnvironmentError, gymnasium.error.Error, OSError)
"""Errors that a user can resolve; the messages say how."""
_LEARNERS: dict[str, type[Learner[Any, Any]]] = {kind.algorithm: kind for kind in (DoubleDQN, C51, R2D2)}


def load_learner(run: Path, agent: SavedAgent) -> Learner[Any, Any]:
    """Load the best network of a run of any algorithm.

    Raises:
        SavedAgentError: see `Learner.load`.
        OwnPartError: the learner or the network of the user is not on this machine.
    """
    kind = _LEARNERS[agent.algorithm] if agent.learner is None else find(agent.learner, "the learner")
    learner: Learner[Any, Any] = kind.load(run)
    return learner


def evaluate_run(run: Path, seeds: range, epsilon: float | None = None) -> EvaluationResult:
    """Play one episode for each seed; ``epsilon`` is the probability of a random action, None: that of the run."""
    agent = SavedAgent.read(run)
    return evaluate(
        load_learner(run, agent).online,
        partial(make_environment, agent.env_id, agent.atari),
        seeds,
        first_action=agent.first_action,
        epsilon=agent.evaluation_epsilon if epsilon is None else epsilon,
    )


def play(run: Path, seeds: range, render: Literal["human", "rgb_array"]) -> Iterator[tuple[float, list[NDArray[Any]]]]:
    """Play episodes, and yield the return of each, with its frames if they are not shown."""
    agent = SavedAgent.read(run)
    network = load_learner(run, agent).online
    env = make_environment(agent.env_id, agent.atari, render)
    try:
        for seed in seeds:
            policy = EpsilonGreedyPolicy(network, agent.spec.actions, evaluated_exploration(seed), torch.device("cpu"))
            yield _episode(env, seed, policy, agent, is_shown=render == "human")
    finally:
        env.close()


def _episode(
    env: Environment, seed: int, policy: EpsilonGreedyPolicy, agent: SavedAgent, *, is_shown: bool
) -> tuple[float, list[NDArray[Any]]]:
    total, frames, is_over = 0.0, [], False
    obs, _ = env.reset(seed=seed)
    while not is_over:
        if not is_shown:
            frames.append(np.asarray(env.render()))
        (action,) = policy.choose(obs[np.newaxis], agent.evaluation_epsilon)
        obs, reward, terminated, truncated, _ = env.step(agent.first_action + int(action))
        total += float(reward)
        is_over = terminated or truncated
        policy.after_step(np.array([action]), np.array([float(reward)]), np.array([is_over]))
    return total, frames


def save_gif(path: Path, frames: list[NDArray[Any]], frames_per_s: float) -> None:
    """Write an animated GIF; frames: uint8[height, width, 3]."""
    images = [Image.fromarray(frame) for frame in frames]
    images[0].save(path, save_all=True, append_images=images[1:], duration=1000 / frames_per_s, loop=0)
