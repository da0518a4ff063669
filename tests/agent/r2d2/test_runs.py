"""Short runs of R2D2 with a real server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from replay_agent.acting.actor import Actor, Step
from replay_agent.acting.environments import inspect_environment, make_environment
from replay_agent.acting.evaluation import evaluate
from replay_agent.algorithms import STATE, sequence_batch, sequence_columns
from replay_agent.dqn.networks import ActingNetwork, NetworkSpec
from replay_agent.processes.signals import StopRequest
from replay_agent.r2d2 import RecurrentQNetwork, build_recurrent_network
from replay_agent.replay.rows import make_recorders
from replay_agent.reporting.progress import ProgressView
from replay_agent.settings.train_settings import TrainSettings
from replay_agent.training.run import train
from replay_agent.training.training_loop import Ending, TrainingLoop
from replay_client import ReplayClient, Sequences
from replay_client.torch import to_torch
from rich.console import Console
from torch import nn

from tests.agent.corridor import BEST_RETURN, CORRIDOR_ID, PICTURED_ID, STACKED_ID
from tests.agent.processes.test_processes import pool_of
from tests.agent.short_runs import Watcher
from tests.agent.training.test_training import CORRIDOR_RUN
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.filterwarnings("ignore:.*share an object:UserWarning")

CARTPOLE_ID = "replay_agent.memory_tasks:MaskedCartPole-v1"
MAZE_ID = "tests.agent.r2d2.test_runs:ShortTMaze-v0"
gymnasium.register("ShortTMaze-v0", "replay_agent.memory_tasks:TMaze", max_episode_steps=12, kwargs={"length": 2})
UNITS = 8
RUN = {"algorithm": "r2d2", "sequence_length": 6, "burn_in": 2, "n_step": 2, "lstm_units": UNITS}


def test_a_run_learns_what_is_best_from_stacks_of_frames(
    server: ServerProcess, settings_of: Callable[..., TrainSettings]
) -> None:
    settings = settings_of(
        server=server.address, **{**CORRIDOR_RUN, **RUN, "env": STACKED_ID, "learning_rate": 5e-3, "lstm_units": 16}
    )
    report = train(settings, StopRequest(), Console(quiet=True))
    assert report.ending == Ending.SOLVED
    assert report.evaluation is not None
    assert report.evaluation.mean == pytest.approx(BEST_RETURN)


def network_for(env_id: str) -> RecurrentQNetwork:
    env = inspect_environment(env_id)
    torch.manual_seed(1)
    spec = NetworkSpec(env.observation_shape, env.observation_dtype, env.actions, (4,), False, lstm_units=UNITS)
    return build_recurrent_network(spec)


def steps_of(network: RecurrentQNetwork, count: int) -> list[Step]:
    actor = Actor(CORRIDOR_ID, 1, network)
    steps = [actor.step(0.7)[0] for _ in range(count)]
    actor.close()
    assert {step.terminated for step in steps if step.is_last} == {True, False}
    return steps


def test_an_actor_carries_the_state_through_an_episode_and_forgets_it_at_the_end() -> None:
    network = network_for(CORRIDOR_ID)
    state = torch.zeros(1, *network.state_shape)
    for step in steps_of(network, 200):
        assert step.state == pytest.approx(state[0].numpy(), abs=1e-6)
        with torch.no_grad():
            state = network.act(torch.as_tensor(step.obs[np.newaxis]), state)[1]
        state[0, 2 * UNITS + step.action], state[0, -1] = 1.0, step.reward
        state = torch.zeros_like(state) if step.is_last else state


def test_a_drawn_sequence_has_the_steps_of_the_actor_and_its_state_before_them(server: ServerProcess) -> None:
    network, env = network_for(CORRIDOR_ID), inspect_environment(CORRIDOR_ID)
    steps = steps_of(network, 200)
    item = Sequences(length=5, burn_in=3, period=4, gamma=0.9)
    with ReplayClient(server.address) as client:
        table = client.create_table("states", columns=sequence_columns(env, UNITS), capacity=500, steps=item)
        with table.writer() as writer:
            (recorder,) = make_recorders(writer, n_step=1, gamma=0.9)
            for step in steps:
                recorder.record(step)
        batch = table.sample(300, beta=0.4)
        table.drop()
    # Every end of an episode adds a closing row.
    ends = np.cumsum([0, *(step.is_last for step in steps)])
    step_of = {index + int(ends[index]): index for index in range(len(steps))}
    begins = [0, *(index + 1 for index, step in enumerate(steps) if step.is_last)]
    learned = sequence_batch(to_torch(batch))
    for row, drawn in enumerate(learned.mask.numpy()):
        anchor = step_of[int(batch.row_keys[row])]
        begin = max(begin for begin in begins if begin <= anchor)
        assert (anchor - begin) % item.period == 0
        first = max(begin, anchor - item.burn_in)
        places = np.flatnonzero(drawn)
        assert places[0] == item.burn_in - (anchor - first)
        expected = steps[first : first + len(places)]
        assert np.array_equal(learned.obs[row][drawn], [step.obs for step in expected])
        assert learned.action[row][drawn].tolist() == [step.action for step in expected]
        assert learned.reward[row][drawn].tolist() == pytest.approx([step.reward for step in expected])
        assert np.array_equal(learned.state[row], steps[first].state.astype(np.float16))
        if expected[-1].is_last and places[-1] + 1 < len(drawn):
            assert np.array_equal(learned.obs[row, places[-1] + 1], expected[-1].next_obs)


class Damping(ActingNetwork):
    """Pushes a cart to the side to which its pole has moved since the last step; the state is the last observation."""

    state_shape = (2,)

    def act(self, observations: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        moved = observations[:, 1] - states[:, 1]
        return torch.stack((-moved, moved), 1), observations


def test_greedy_episodes_have_states_of_their_own_however_many_are_played_at_once() -> None:
    seeds = list(range(50))
    together = evaluate(Damping(), lambda: make_environment(CARTPOLE_ID), seeds)
    alone = [evaluate(Damping(), lambda: make_environment(CARTPOLE_ID), [seed]).mean for seed in seeds]
    assert len(set(alone)) > 5
    assert together.returns.tolist() == alone


def flat(network: nn.Module) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in network.state_dict().values()])


def test_equal_seeds_give_equal_runs_in_lockstep(make_trainer: Callable[..., TrainingLoop]) -> None:
    networks = []
    for seed in (3, 3, 4):
        trainer = make_trainer(env=PICTURED_ID, lockstep=True, seed=seed, steps=250, **RUN)
        trainer.train(ProgressView(), None)
        networks.append(flat(trainer.learner.online))
    assert torch.equal(networks[0], networks[1])
    assert not torch.equal(networks[0], networks[2])


def test_gradient_steps_keep_to_the_replay_ratio_without_closing_rows(
    make_trainer: Callable[..., TrainingLoop], server: ServerProcess
) -> None:
    trainer = make_trainer(env=MAZE_ID, table="paced", replay_ratio=0.5, steps=500, learning_starts=101, **RUN)
    assert trainer.train(ProgressView(), None) is Ending.STEPS_DONE
    assert trainer.learner.updates == 200
    trainer.table.flush()
    with ReplayClient(server.address) as client:
        table = client.table("paced")
        assert table.describe().inserted == 500 + len(trainer.history.episode_returns)
        table.drop()


def test_a_stopped_run_is_resumed_where_it_was(make_trainer: Callable[..., TrainingLoop], tmp_path: Path) -> None:
    stop = StopRequest()
    first = make_trainer(stop, name="resumed-r2d2", env=MAZE_ID, steps=5_000, **RUN)
    assert first.train(Watcher(500, stop.set), None) is Ending.STOPPED
    first.save()
    first.close()
    second = make_trainer(
        resume=tmp_path / "runs" / "resumed-r2d2", env=MAZE_ID, steps=first.pacer.env_steps + 300, **RUN
    )
    second.resume()
    assert torch.equal(flat(first.learner.online), flat(second.learner.online))
    assert second.train(ProgressView(), None) is Ending.STEPS_DONE
    assert second.learner.updates > first.learner.updates


def test_actor_processes_record_the_states_of_the_learners_network(
    make_trainer: Callable[..., TrainingLoop], server: ServerProcess, tmp_path: Path
) -> None:
    trainer = make_trainer(env=MAZE_ID, table="acted", actors=2, steps=1_500, validate_interval=100_000, **RUN)
    with pool_of(trainer, server, tmp_path, count=2) as pool:
        assert trainer.train(ProgressView(), pool) is Ending.STEPS_DONE
    assert trainer.learner.updates > 0
    with ReplayClient(server.address) as client:
        table = client.table("acted")
        rows = table.read(np.arange(table.describe().inserted))
        table.drop()
    states = rows[STATE].reshape(len(rows[STATE]), -1)
    # Only an episode's first step, and the row that closes it, have a state of zeros.
    zeros = int((~states.any(axis=1)).sum())
    assert rows.ends is not None
    closing = int((rows.ends != 0).sum())
    assert closing > 50
    assert 0 <= zeros - 2 * closing <= 2
