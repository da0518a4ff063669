"""Actors as in Ape-X: each has its own epsilon, and computes the priorities of its new rows."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from replay_agent.acting.actor import ape_x_epsilons
from replay_agent.acting.environments import inspect_environment
from replay_agent.algorithms import step_columns
from replay_agent.distributed.acting_run import own_epsilon, run_actor
from replay_agent.distributed.actor_guide import Guidance
from replay_agent.distributed.run_tables import EPISODE_COLUMNS, ActorTask, Progress, table_number
from replay_agent.dqn.networks import NetworkSpec, build_network
from replay_agent.reporting.progress import ProgressView
from replay_agent.settings.actor_settings import load_actor_settings
from replay_agent.training.training_loop import Ending, TrainingLoop
from replay_client import ReplayClient, Table, Transitions

from tests.agent.corridor import CORRIDOR_ID
from tests.agent.processes.test_processes import pool_of
from tests.agent.short_runs import PATIENCE_S, Watcher
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.filterwarnings("ignore:.*share an object:UserWarning")

EPSILONS = (0.5, 0.25, 0.125)


def test_epsilons_are_those_of_the_paper() -> None:
    # Horgan et al. (2018), section 4.1: 0.4 ** (1 + i / (N - 1) * 7)
    assert ape_x_epsilons(0.4, 7.0, 3) == pytest.approx((0.4, 0.4**4.5, 0.4**8))
    assert ape_x_epsilons(0.4, 7.0, 360)[-1] == pytest.approx(0.00065536)


def test_an_actors_epsilon_follows_from_the_last_number_in_its_name() -> None:
    names = ("actor-0", "actor-1", "actor-2", "actor-3", "rack2-worker-10", "host:4711")
    assert [own_epsilon(EPSILONS, name) for name in names] == [EPSILONS[i] for i in (0, 1, 2, 0, 10 % 3, 4711 % 3)]
    assert own_epsilon(EPSILONS, "me") == own_epsilon(EPSILONS, "me")
    assert {own_epsilon(EPSILONS, name) for name in "abcdefgh"} == set(EPSILONS)
    assert own_epsilon((), "actor-0") is None


def always_right(spec: NetworkSpec) -> dict[str, torch.Tensor]:
    """Weights with which action 0 has the value 0, and action 1 the value 1, whatever the observation."""
    weights = {name: torch.zeros_like(tensor) for name, tensor in build_network(spec).state_dict().items()}
    weights["head.layer.bias"][1] = 1.0
    return weights


def priorities_of(table: Table) -> dict[int, float]:
    """Priorities by key, in a table with alpha 1."""
    batch = table.sample(2_000, beta=0.0)
    found = batch.probabilities * batch.total_mass
    return dict(sorted(zip(batch.row_keys.tolist(), found.tolist(), strict=True)))


def test_an_actor_keeps_to_its_own_epsilon_and_inserts_rows_with_priorities(
    client: ReplayClient, server: ServerProcess
) -> None:
    env = inspect_environment(CORRIDOR_ID)
    table = client.create_table(
        "of-actor",
        columns=step_columns(env),
        capacity=1_000,
        alpha=1.0,
        epsilon=1e-9,
        steps=Transitions(n_step=2, gamma=0.9),
    )
    spec = NetworkSpec(env.observation_shape, env.observation_dtype, env.actions, (4,), dueling=False)
    task = ActorTask(
        start=1,
        env_id=CORRIDOR_ID,
        table="of-actor",
        n_step=2,
        gamma=0.9,
        network=spec,
        seed=0,
        starts=0,
        epsilons=(0.0,),
        actor_priorities=True,
    )
    # An actor without a constant epsilon would act at random.
    guidance = Guidance(table_number(table.uid), goal=500, epsilon=1.0)
    client.publish("me.weights", always_right(spec))
    client.publish("me.task", task.to_state())
    client.publish("me.progress", Progress(1, *guidance, weights=1, is_finished=False)._asdict())
    client.create_table("me.episodes", columns=EPISODE_COLUMNS, capacity=100, backend="uniform")
    stop = threading.Event()
    settings = load_actor_settings(["--server", server.address, "--name", "me"])  # there is only one run
    actor = threading.Thread(target=run_actor, args=(settings, stop))
    actor.start()
    wait_until(lambda: table.describe().inserted >= 50, "the actor acts", PATIENCE_S)
    stop.set()
    actor.join(PATIENCE_S)
    rows = table.read(np.arange(50))
    assert rows.ends is not None
    keys = np.flatnonzero(rows.ends == 0).tolist()
    assert len(keys) == 40  # each fifth row closes an episode
    assert (rows["action"][keys] == 1).all()  # by the guidance alone, half of them would be 0
    # Two steps cost 0.1 each, and the next value is 1; the last two steps of an episode lead to the goal.
    usual, last_but_one, last = abs(-0.1 - 0.09 + 0.81 - 1), abs(-0.1 + 0.81 - 1), abs(0.9 - 1)
    assert rows.priorities[keys].tolist() == pytest.approx([usual, usual, last_but_one, last] * 10, abs=1e-6)


# With one gradient step, at the end, all priorities are those of new rows, except in its batch.
ONE_STEP = {"env": CORRIDOR_ID, "alpha": 1.0, "learning_starts": 300, "steps": 310, "replay_ratio": 0.1}
DEFAULT = 1.0
"""Priority of the first row of a table, if nobody gives one; that of the next ones follows from it."""


def test_all_actors_of_a_run_with_ape_x_give_priorities(
    make_trainer: Callable[..., TrainingLoop],
    server: ServerProcess,
    client: ReplayClient,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    watcher = Watcher(1, lambda: None)
    trainer = make_trainer(table="ape-x", actors=1, act=True, exploration="ape-x", lead_steps=1, **ONE_STEP)
    with pool_of(trainer, server, tmp_path, count=1) as pool:
        guide = trainer.guide
        assert guide is not None
        wait_until(lambda: guide.actors_joined == 1, "the actor joins", PATIENCE_S)
        assert trainer.train(watcher, pool) is Ending.STEPS_DONE
    assert "actor 1 joined: 'actor-0'" in caplog.text
    assert watcher.statuses[-1].epsilon is None
    trainer.table.flush()
    found = set(priorities_of(client["ape-x"]).values())
    assert DEFAULT not in found
    assert len(found) > 5


def test_a_trainer_that_acts_gives_priorities_of_its_own(
    make_trainer: Callable[..., TrainingLoop], client: ReplayClient
) -> None:
    trainer = make_trainer(table="alone", actor_priorities=True, **ONE_STEP)
    assert trainer.train(ProgressView(), None) is Ending.STEPS_DONE
    trainer.table.flush()
    found = set(priorities_of(client["alone"]).values())
    assert DEFAULT not in found
    assert len(found) > 5
