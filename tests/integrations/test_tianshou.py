"""The replay buffer for Tianshou, with the real library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from replay_client import InvalidArgumentError, ReplayClient, TableExistsError, TableNotFoundError

from tests.support.server_process import ServerProcess

torch = pytest.importorskip("torch")
pytest.importorskip("tianshou", reason="tianshou is not installed", exc_type=ImportError)
gymnasium = pytest.importorskip("gymnasium")

from replay_client.tianshou import ServiceReplayBuffer  # noqa: E402
from tianshou.algorithm import DQN, algorithm_base  # noqa: E402
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy  # noqa: E402
from tianshou.algorithm.optim import AdamOptimizerFactory  # noqa: E402
from tianshou.data import Batch, Collector, VectorReplayBuffer  # noqa: E402
from tianshou.data.buffer import manager  # noqa: E402
from tianshou.env import DummyVectorEnv  # noqa: E402
from tianshou.trainer import OffPolicyTrainerParams  # noqa: E402
from tianshou.utils.net.common import Net  # noqa: E402
from tianshou.utils.torch_utils import policy_within_training_step  # noqa: E402

NewBuffer = Callable[..., ServiceReplayBuffer]

GAMMA = 0.9


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tianshou's numba functions as Python: each process would compile them, longer than the tests take."""
    for module, name in ((manager, "_prev_index"), (manager, "_next_index"), (algorithm_base, "_nstep_return")):
        monkeypatch.setattr(module, name, getattr(module, name).py_func)


@pytest.fixture
def new_buffer(server: ServerProcess) -> Iterator[NewBuffer]:
    """Creates buffers of one table, and drops it at the end."""
    made: list[ServiceReplayBuffer] = []

    def create(**config: Any) -> ServiceReplayBuffer:
        made.append(ServiceReplayBuffer(client, "tianshou", **{"env_num": 2, "capacity": 1000, **config}))
        return made[-1]

    with ReplayClient(server.address) as client:
        yield create
        for buffer in made:
            buffer.close()
        if "tianshou" in client:
            client.drop_table("tianshou")


@pytest.fixture
def buffer(new_buffer: NewBuffer) -> ServiceReplayBuffer:
    """A buffer for two environments, whose table does not exist yet."""
    return new_buffer()


def step(number: int, *, terminated: Any = False, truncated: Any = False, is_reset: bool = False) -> Any:
    """A step of two environments. Observations go on from step to step, unless both were reset."""
    start = number + 0.5 * is_reset
    return Batch(
        obs=np.array([[start, 0.0], [start, 100.0]], np.float32),
        act=np.array([number % 2, 1]),
        rew=np.array([number, -number]),
        terminated=np.array([terminated, False]),
        truncated=np.array([truncated, truncated]),
        obs_next=np.array([[number + 1, 0.0], [number + 1, 100.0]], np.float32),
        info=Batch(),
        policy=Batch(),
    )


def dqn(n_step: int, **options: Any) -> Any:
    env = gymnasium.make("CartPole-v1")
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=(4,), action_shape=2, hidden_sizes=[64, 64]), action_space=env.action_space, **options
    )
    return DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=1e-3),
        gamma=0.99,
        n_step_return_horizon=n_step,
        target_update_freq=200,
    )


def environments(count: int) -> Any:
    return DummyVectorEnv([lambda: gymnasium.make("CartPole-v1")] * count)


def value_after(buffer: Any, indices: Any) -> Any:
    return torch.tensor(buffer[indices].obs_next[:, 0].tolist())


def targets(buffer: Any, sampled: Any, n_step: int) -> dict[tuple[float, ...], float]:
    """The n-step target of each observation; the value of an observation is its first number."""
    batch, indices = sampled
    returns = DQN.compute_nstep_return(batch, buffer, indices, value_after, GAMMA, n_step).returns
    return dict(zip(map(tuple, batch.obs.tolist()), returns.flatten().tolist(), strict=True))


@pytest.mark.parametrize("n_step", [1, 3])
def test_targets_are_those_of_tianshou(new_buffer: NewBuffer, n_step: int) -> None:
    buffer = new_buffer(n_step=n_step, gamma=GAMMA)
    theirs = VectorReplayBuffer(total_size=1000, buffer_num=2)
    for number in range(60):
        ends = {"terminated": number % 7 == 5, "truncated": number % 11 == 9}
        buffer.add(step(number, **ends))
        theirs.add(step(number, **ends))
    expected = targets(theirs, theirs.sample(0), n_step)
    drawn = targets(buffer, buffer.sample(2000), n_step)
    assert drawn == pytest.approx({obs: expected[obs] for obs in drawn}, rel=1e-5)
    incomplete = 2 * (n_step - 1) + 2  # at most: the last steps of the episodes that run
    assert len(drawn) >= len(expected) - incomplete


def test_an_algorithm_with_another_horizon_is_refused(new_buffer: NewBuffer) -> None:
    buffer = new_buffer(n_step=3, gamma=GAMMA)
    for number in range(10):
        buffer.add(step(number))
    for horizon in (1, 2, 4):
        with pytest.raises(InvalidArgumentError, match=f"n_step_return_horizon: expected 3.*got {horizon}"):
            targets(buffer, buffer.sample(8), horizon)


def test_a_reset_in_an_episode_truncates_it(buffer: ServiceReplayBuffer) -> None:
    for number in range(5):
        buffer.add(step(number))
    buffer.add(step(5, is_reset=True))
    steps = buffer.stats().steps
    assert steps is not None
    assert (steps.closing, len(buffer)) == (2, 14)
    batch, _ = buffer.sample(200)
    assert not batch.terminated.any()
    assert set(batch.obs_next[:, 0].tolist()) == {1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("changed", "ids", "named"),
    [
        ({"terminated": np.array([False])}, None, r"terminated: expected bool\[2\]"),
        ({"truncated": np.array([0.5, 0.0])}, None, "truncated: .* or 0 and 1"),
        ({}, [0, 2], "buffer_ids: expected different numbers from 0 to 1"),
        ({}, [1, 1], "buffer_ids"),
        ({}, [1], r"terminated: expected bool\[1\]"),
        ({"obs_next": np.array([[0, 0], [1e39, 0]])}, None, r"columns\.obs: expected float32, .* got 1e\+39"),
    ],
)
def test_all_arguments_are_checked_before_anything_is_added(
    buffer: ServiceReplayBuffer, changed: dict[str, Any], ids: Any, named: str
) -> None:
    buffer.add(step(0))
    with pytest.raises(InvalidArgumentError, match=named):
        buffer.add(Batch(step(1), **changed), buffer_ids=ids)
    assert len(buffer) == 2


def test_add_answers_like_tianshou(buffer: ServiceReplayBuffer) -> None:
    theirs = VectorReplayBuffer(total_size=1000, buffer_num=2)
    for number in range(12):
        given = {"terminated": number == 4, "truncated": number == 8}
        index, returns, lengths, starts = buffer.add(step(number, **given))
        their_index, their_returns, their_lengths, their_starts = theirs.add(step(number, **given))
        assert (returns.tolist(), lengths.tolist()) == (their_returns.tolist(), their_lengths.tolist())
        for each in range(2):
            ours = buffer[buffer.get_buffer_indices(starts[each], index[each] + 1)]
            other = theirs[theirs.get_buffer_indices(their_starts[each], their_index[each] + 1)]
            assert len(ours) == len(other)
            assert (ours.rew.tolist(), ours.act.tolist()) == (other.rew.tolist(), other.act.tolist())


def test_priorities_and_weights_are_those_of_the_table(buffer: ServiceReplayBuffer) -> None:
    for number in range(3):
        buffer.add(step(number))
    buffer.set_beta(1.0)
    batch, indices = buffer.sample(64)
    assert batch.weight.tolist() == [1] * 64
    is_first = batch.obs[:, 0] == 0
    buffer.update_weight(indices, torch.where(torch.from_numpy(is_first), -8.0, 1.0))
    batch, _ = buffer.sample(64)
    assert sorted(set(batch.weight.tolist())) == pytest.approx([8**-0.6, 1.0], rel=1e-4)


def test_what_cannot_be_stored_is_refused_by_name(buffer: ServiceReplayBuffer) -> None:
    text = np.array(["left", "right"])
    with pytest.raises(InvalidArgumentError, match=r"columns\.act\.dtype"):
        buffer.add(Batch(step(0), act=text))
    assert buffer.name not in buffer.client
    with pytest.raises(TableNotFoundError):
        buffer.sample(1)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"obs": np.zeros((2, 3), np.float32)}, r"columns\.obs: expected float32\[2,2\], got float32\[2,3\]"),
        ({"obs_next": np.zeros((2, 3), np.float32)}, r"columns\.obs: expected float32\[2,2\], got float32\[2,3\]"),
        ({"act": np.array([0.5, 1.5])}, r"columns\.act: expected int64, got float64\[2\]"),
        ({"act": Batch(a=np.zeros(2))}, "missing: act; unknown: act/a"),
    ],
)
def test_a_later_step_that_differs_is_refused_by_name(
    buffer: ServiceReplayBuffer, changed: dict[str, Any], named: str
) -> None:
    buffer.add(step(0))
    with pytest.raises(InvalidArgumentError, match=named):
        buffer.add(Batch(step(1), **changed))
    buffer.add(step(1))
    assert buffer.sample(4)[0].obs.shape == (4, 2)
    assert len(buffer) == 4


def test_a_table_of_another_n_step_is_not_opened(new_buffer: NewBuffer) -> None:
    new_buffer(n_step=1).add(step(0))
    with pytest.raises(TableExistsError, match="n_step"):
        new_buffer(n_step=3).add(step(0))


def test_a_learner_of_a_table_with_another_n_step_is_refused(new_buffer: NewBuffer) -> None:
    actors = new_buffer(n_step=1, gamma=0.5)
    actors.add(step(0, truncated=True))
    actors.close()
    for n_step, gamma in ((3, 0.5), (1, 0.9)):
        learner = ServiceReplayBuffer(actors.client, actors.name, env_num=2, capacity=1000, n_step=n_step, gamma=gamma)
        with pytest.raises(InvalidArgumentError, match="n_step and gamma: expected those of table"):
            learner.sample(4)


def test_a_step_that_ctrl_c_ends_leaves_no_wrong_transition(
    buffer: ServiceReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        buffer.add(step(number))
    assert buffer._writer is not None
    stream = buffer._writer[0]
    take = stream.append

    def take_and_interrupt(row: Any) -> None:
        take(row)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(stream, "append", take_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            buffer.add(step(2))
    buffer.add(step(5, is_reset=True, truncated=True))
    batch, _ = buffer.sample(200)
    firsts = batch.obs[:, 1] == 0  # of the first environment
    found = set(zip(batch.obs[firsts, 0].tolist(), batch.obs_next[firsts, 0].tolist(), strict=True))
    assert found == {(0, 1), (1, 2), (5.5, 6)}


def test_the_whole_table_is_not_read(buffer: ServiceReplayBuffer) -> None:
    buffer.add(step(0))
    for size in (0, None):
        with pytest.raises(InvalidArgumentError, match="batch_size"):
            buffer.sample(size)
    with pytest.raises(NotImplementedError, match=r"client\.table"):
        buffer.save_hdf5("file")


def test_reset_empties_the_table(buffer: ServiceReplayBuffer) -> None:
    assert len(buffer) == 0
    buffer.reset()
    for number in range(5):
        buffer.add(step(number))
    buffer.reset()
    assert len(buffer) == 0
    buffer.add(step(7))
    assert buffer.add(step(8, truncated=True))[2].tolist() == [2, 2]


def test_a_closed_buffer_is_read_and_goes_on(buffer: ServiceReplayBuffer) -> None:
    buffer.add(step(0))
    buffer.add(step(1, truncated=True))
    buffer.close()
    assert len(buffer) == buffer.stats().size == 6
    assert buffer.sample(4)[0].obs.shape == (4, 2)
    buffer.add(step(5, truncated=True, is_reset=True))
    assert len(buffer) == 10
    buffer.close()
    buffer.reset()
    assert len(buffer) == 0


def test_nan_is_reported(buffer: ServiceReplayBuffer) -> None:
    buffer.add(step(0))
    assert not buffer.hasnull()
    buffer.add(Batch(step(1), rew=np.array([np.nan, 0])))
    assert buffer.hasnull()


def test_a_collector_fills_it_and_an_algorithm_learns(new_buffer: NewBuffer) -> None:
    buffer = new_buffer(n_step=3)
    algorithm = dqn(3)
    collector = Collector(algorithm, environments(2), buffer)
    collector.reset()
    collected = collector.collect(n_step=100, random=True)
    assert collected.n_collected_steps == 100
    assert len(buffer) == 100 + collected.n_collected_episodes
    with policy_within_training_step(algorithm.policy):
        algorithm.update(buffer=buffer, sample_size=32)
    assert 0 < buffer.stats().updated <= 32  # a row may be drawn twice
    collector.close()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_dqn_with_three_steps_solves_cartpole(new_buffer: NewBuffer) -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    buffer = new_buffer(env_num=8, capacity=20_000, n_step=3)
    algorithm = dqn(3, eps_training=0.1, eps_inference=0.0)
    training = Collector(algorithm, environments(8), buffer, exploration_noise=True)
    training.reset()
    training.collect(n_step=1000, random=True)
    result = algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=training,
            test_collector=Collector(algorithm, environments(10)),
            max_epochs=10,
            epoch_num_steps=5000,
            collection_step_num_env_steps=8,
            update_step_num_gradient_steps_per_sample=0.25,
            batch_size=64,
            test_step_num_episodes=10,
            stop_fn=lambda score: score >= 195,
            show_progress=False,
        )
    )
    print(result.best_score, result.timing)
    assert result.best_score >= 195
