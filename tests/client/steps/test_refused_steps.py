"""Steps that `RecordSteps` refuses: those of no episode, and ends without a final observation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from replay_client import Column, InvalidArgumentError, Next, Table, Transitions
from replay_client.gymnasium import RecordSteps

COLUMNS = {"obs": Column("int64"), "action": Column("int64"), "reward": Column("float32"), "next_obs": Next("obs")}


class ThreeSteps(gymnasium.Env[Any, Any]):
    """Episodes of 3 steps."""

    observation_space = spaces.Discrete(4)
    action_space = spaces.Discrete(1)
    steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.steps, 1.0, self.steps == 3, False, {}


@pytest.fixture
def steps_table(new_table: Callable[..., Table]) -> Table:
    return new_table(columns=COLUMNS, steps=Transitions(1), backend="uniform")


def test_a_step_of_no_episode_is_refused_before_it_is_made(steps_table: Table) -> None:
    env = ThreeSteps()
    with steps_table.writer(streams=2) as writer:
        recorded = RecordSteps(env, writer[0])
        with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
            recorded.step(0)
        recorded.reset()
        for _ in range(3):
            recorded.step(0)
        with pytest.raises(ResetNeeded, match="Autoreset"):
            recorded.step(0)
        assert env.steps == 3


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_step_of_no_episode_of_a_vector_environment_is_refused(steps_table: Table, mode: AutoresetMode) -> None:
    envs = SyncVectorEnv([ThreeSteps, ThreeSteps], autoreset_mode=mode)
    actions = np.zeros(2, np.int64)
    with steps_table.writer(streams=2) as writer:
        recorded = RecordSteps(envs, writer)
        with pytest.raises(ResetNeeded, match=r"environments \[0, 1\]"):
            recorded.step(actions)
        recorded.reset()
        for _ in range(3):
            recorded.step(actions)
        if mode is AutoresetMode.DISABLED:
            recorded.reset(options={"reset_mask": np.array([True, False])})
            with pytest.raises(ResetNeeded, match=r"environments \[1\]"):
                recorded.step(actions)
        else:
            recorded.step(actions)


def test_infos_without_final_observations_are_refused_by_name(steps_table: Table) -> None:
    class Silent(gymnasium.vector.VectorWrapper):
        def step(self, actions: Any) -> Any:
            return (*self.env.step(actions)[:4], {})

    envs = Silent(SyncVectorEnv([ThreeSteps], autoreset_mode=AutoresetMode.SAME_STEP))
    with steps_table.writer(streams=1) as writer:
        recorded = RecordSteps(envs, writer)
        recorded.reset()
        for _ in range(2):
            recorded.step(np.zeros(1, np.int64))
        with pytest.raises(InvalidArgumentError, match=r"infos\.final_obs: expected the final .*SAME_STEP, got none"):
            recorded.step(np.zeros(1, np.int64))
