"""Plays with the best network of a run: `replay-eval` and `replay-play`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.wrappers import RenderCollection
from numpy.typing import NDArray
from PIL import Image

from replay_agent.acting.environments import make_environment
from replay_agent.acting.evaluation import EvaluationResult, evaluate
from replay_agent.acting.step_guard import EnvironmentFailedError
from replay_agent.algorithms import ALGORITHMS
from replay_agent.dqn.learner import Learner
from replay_agent.dqn.saved_agents import SavedAgent
from replay_agent.own_parts import find

Frame = NDArray[np.uint8]
"""uint8[height, width, 3]."""
FAILURES = (EnvironmentFailedError, OSError, ValueError, gymnasium.error.Error)
"""Errors that a user can resolve; the messages say how."""


def load_learner(run: Path, agent: SavedAgent) -> Learner[Any, Any]:
    """Load the best network of a run of any algorithm. The errors are those of `Learner.load` and `find`."""
    kind = ALGORITHMS[agent.algorithm].learner if agent.learner is None else find(agent.learner, "the learner")
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


def play(run: Path, seeds: range, render: Literal["human", "rgb_array"]) -> tuple[EvaluationResult, list[Frame]]:
    """Play one episode for each seed, one after the other, and return the frames if they are not shown in a window."""
    agent = SavedAgent.read(run)
    network = load_learner(run, agent).online
    env = make_environment(agent.env_id, agent.atari, render)
    if render != "human":
        env = RenderCollection(env, reset_clean=False)
    first_action, epsilon = agent.first_action, agent.evaluation_epsilon
    result = evaluate(network, lambda: env, seeds, first_action=first_action, epsilon=epsilon, parallel=1)
    frames: Any = [] if render == "human" else env.render()
    return result, frames


def save_gif(path: Path, frames: list[Frame], frames_per_s: float) -> None:
    """Write an animated GIF."""
    images = [Image.fromarray(frame) for frame in frames]
    images[0].save(path, save_all=True, append_images=images[1:], duration=1000 / frames_per_s, loop=0)
