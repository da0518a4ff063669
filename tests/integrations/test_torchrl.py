"""The replay buffer for TorchRL, with the real library."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from replay_client import InvalidArgumentError, ReplayClient, TableExistsError, TableNotFoundError

from tests.support.server_process import ServerProcess

torch = pytest.importorskip("torch")
torchrl = pytest.importorskip("torchrl", reason="torchrl is not installed", exc_type=ImportError)
gymnasium = pytest.importorskip("gymnasium")

from replay_client.torchrl import ServiceReplayBuffer  # noqa: E402
from tensordict import NonTensorData, TensorDict  # noqa: E402
from tensordict.nn import TensorDictSequential  # noqa: E402
from torchrl.collectors import Collector  # noqa: E402
from torchrl.envs import GymEnv, StepCounter, TransformedEnv  # noqa: E402
from torchrl.modules import MLP, EGreedyModule, QValueActor  # noqa: E402
from torchrl.objectives import DQNLoss, HardUpdate  # noqa: E402
from torchrl.trainers import ReplayBufferTrainer  # noqa: E402

NewBuffer = Callable[..., ServiceReplayBuffer]

SOLVED = 475
"""Mean return of greedy episodes of CartPole, of at most 500; random actions have about 20."""
FRAMES, UPDATES = 256, 128
"""Environment steps between trainings, and gradient steps in each of them, as in RL Baselines3 Zoo."""


@pytest.fixture
def new_buffer(server: ServerProcess) -> Iterator[NewBuffer]:
    """Creates buffers of one table, and drops it at the end."""
    with ReplayClient(server.address) as client:
        yield lambda **config: ServiceReplayBuffer(client, "torchrl", **{"capacity": 1000, **config})
        if "torchrl" in client:
            client.drop_table("torchrl")


@pytest.fixture
def buffer(new_buffer: NewBuffer) -> ServiceReplayBuffer:
    """A buffer whose table does not exist yet."""
    return new_buffer()


def transitions(*shape: int) -> Any:
    """A tensordict of this batch size; each value tells its row."""
    count = int(np.prod(shape))
    numbers = torch.arange(count).reshape(shape)
    return TensorDict(
        {
            "observation": numbers[..., None] + torch.arange(4.0),
            "action": numbers,
            "nested": {"deep": {"flag": numbers[..., None] % 2 == 0}},
            "next": {"observation": numbers[..., None] + torch.arange(1.0, 5.0), "reward": numbers[..., None] / 2},
        },
        batch_size=shape,
    )


def environment() -> Any:
    return TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), StepCounter())


def q_network(env: Any, cells: list[int]) -> Any:
    layers = MLP(in_features=4, out_features=2, num_cells=cells, activation_class=torch.nn.ReLU)
    return QValueActor(layers, in_keys=["observation"], spec=env.action_spec)


def test_each_element_of_any_batch_size_is_a_row(buffer: ServiceReplayBuffer) -> None:
    assert buffer.extend(transitions(2, 3)).shape == (6,)
    assert buffer.add(transitions(2)).shape == (2,)
    assert buffer.add(transitions(1)[0]).shape == (1,)
    assert len(buffer) == buffer.stats().size == buffer.write_count == 9
    stacked = torch.stack([transitions(2), transitions(2)])
    assert buffer.extend(type(transitions(2)).lazy_stack([stacked[0], stacked[1]])).shape == (4,)


def test_what_was_sampled_can_be_inserted(buffer: ServiceReplayBuffer) -> None:
    buffer.extend(transitions(5))
    buffer.extend(buffer.sample(3))
    assert len(buffer) == 8


def test_before_the_first_row_it_is_empty(buffer: ServiceReplayBuffer) -> None:
    assert (len(buffer), buffer.write_count, bool(buffer)) == (0, 0, True)
    buffer.empty()
    with pytest.raises(TableNotFoundError):
        buffer.sample(1)


def test_empty_removes_rows_and_counting_goes_on(buffer: ServiceReplayBuffer) -> None:
    buffer.extend(transitions(5))
    buffer.empty()
    assert (len(buffer), buffer.write_count) == (0, 5)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda td: td.exclude("action"), "columns.action: expected int64, as in the table, got no such value"),
        (lambda td: td.set("done", td["action"]), "columns.done: expected one of the table's columns"),
        (lambda td: td.set("action", td["action"].int()), "columns.action: expected int64, as in the table, got int32"),
        (lambda td: td.set(("next", "reward"), td["action"].float()), r"columns.next/reward: expected float32\[1\]"),
    ],
)
def test_a_later_tensordict_that_differs_is_refused_by_key(
    buffer: ServiceReplayBuffer, change: Callable[[Any], Any], named: str
) -> None:
    buffer.extend(transitions(5))
    with pytest.raises(InvalidArgumentError, match=named):
        buffer.extend(change(transitions(5)))
    assert buffer.write_count == 5


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("half", lambda: torch.zeros(5, dtype=torch.bfloat16), r"data\['half'\]: .* got torch.bfloat16"),
        ("text", lambda: NonTensorData("a", batch_size=[5]), r"data\['text'\]: .* got NonTensor"),
        (("next", "a/b"), lambda: torch.zeros(5), r"data\[\('next', 'a/b'\)\]: expected a key without '/'"),
        ("wave", lambda: torch.zeros(5, dtype=torch.complex64), "columns.wave.dtype: .*complex64"),
        (("next", "none"), lambda: torch.zeros(5, 0), "columns.next/none.shape"),
        ("_private", lambda: torch.zeros(5), "columns: .* got '_private'"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_key(
    buffer: ServiceReplayBuffer, key: Any, value: Callable[[], Any], named: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        buffer.extend(transitions(5).set(key, value()))
    assert buffer.name not in buffer.client


def test_only_tensordicts_and_batch_sizes_are_taken(buffer: ServiceReplayBuffer) -> None:
    with pytest.raises(InvalidArgumentError, match="data: expected a tensordict, got dict"):
        buffer.extend({"action": torch.zeros(1)})
    buffer.extend(transitions(5))
    with pytest.raises(InvalidArgumentError, match="batch_size"):
        buffer.sample()


@pytest.mark.parametrize("empty", [TensorDict({}, [3]), TensorDict({}, []), transitions(0), transitions(2, 0)], ids=str)
def test_an_empty_tensordict_is_refused(buffer: ServiceReplayBuffer, empty: Any) -> None:
    with pytest.raises(
        InvalidArgumentError, match="data: expected a tensordict with values and elements, got one with"
    ):
        buffer.extend(empty)
    assert buffer.name not in buffer.client
    keys = buffer.extend(transitions(2))
    assert buffer.update_priority(keys[:0], torch.zeros(0, 1)).updated == 0


def test_a_table_with_other_columns_is_not_opened(new_buffer: NewBuffer) -> None:
    new_buffer().extend(transitions(5))
    with pytest.raises(TableExistsError):
        new_buffer().extend(transitions(5).exclude("action"))


def test_priorities_come_with_rows_and_by_update(buffer: ServiceReplayBuffer) -> None:
    keys = buffer.extend(transitions(3).set("td_error", torch.tensor([[1.0], [2.0], [3.0]])))
    table = buffer.client.table(buffer.name)
    assert table.read(keys).priorities.tolist() == [1, 2, 3]
    drawn = buffer.sample(32).set("td_error", torch.full((32, 1), 0.5))
    result = buffer.update_tensordict_priority(drawn)
    assert result.updated == len(set(drawn["index"].tolist()))
    buffer.update_priority(keys, torch.tensor([[4.0, 1.0], [2.0, 5.0], [6.0, 6.0]]))
    assert table.read(keys).priorities.tolist() == [4, 5, 6]
    with pytest.raises(InvalidArgumentError, match="td_error: expected a key of the tensordict"):
        buffer.update_tensordict_priority(buffer.sample(2))


def test_weights_are_those_of_the_draw(buffer: ServiceReplayBuffer) -> None:
    buffer.extend(transitions(2).set("td_error", torch.tensor([1.0, 8.0])))
    buffer.beta = 1.0
    drawn, info = buffer.sample(100, return_info=True)
    assert info["priority_weight"] is drawn["priority_weight"]
    assert drawn["priority_weight"].unique().tolist() == pytest.approx([8**-0.6, 1.0], rel=1e-4)


def test_a_pickled_buffer_writes_to_the_same_table(buffer: ServiceReplayBuffer) -> None:
    first = pickle.loads(pickle.dumps(buffer))
    first.extend(transitions(5))
    second = pickle.loads(pickle.dumps(first))
    second.extend(transitions(5))
    assert len(buffer) == 10
    for each in (first, second):
        each.client.close()


@pytest.mark.parametrize("extends", [True, False])
def test_a_collector_fills_it(buffer: ServiceReplayBuffer, extends: bool) -> None:
    collector = Collector(
        environment(),
        None,
        frames_per_batch=10,
        total_frames=30,
        init_random_frames=10,
        replay_buffer=buffer,
        extend_buffer=extends,
    )
    assert list(collector) == [None] * 3
    assert buffer.write_count == 30
    collector.shutdown()
    assert buffer.sample(8)["next", "observation"].shape == (8, 4)


def test_a_loss_uses_the_weights_and_tells_the_priorities(new_buffer: NewBuffer) -> None:
    buffer = new_buffer(batch_size=16)
    env = environment()
    network = q_network(env, cells=[64, 64])
    loss = DQNLoss(network, action_space=env.action_spec)
    buffer.extend(env.rollout(20))
    hooks = ReplayBufferTrainer(buffer)
    hooks.extend(env.rollout(5))
    drawn = hooks.sample(None)
    loss(drawn)["loss"].backward()
    hooks.update_priority(drawn)
    assert hooks.state_dict() == {"replay_buffer": {}}
    table = buffer.client.table(buffer.name)
    told = dict(zip(drawn["index"].tolist(), drawn["td_error"].flatten().tolist(), strict=True))
    assert table.read(list(told)).priorities.tolist() == pytest.approx(list(told.values()))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_workers_of_a_collector_fill_it(buffer: ServiceReplayBuffer) -> None:
    from torchrl.collectors import MultiSyncCollector

    collector = MultiSyncCollector(
        [environment, environment], None, frames_per_batch=20, total_frames=60, replay_buffer=buffer
    )
    try:
        for _ in collector:
            pass
    finally:
        collector.shutdown()
    assert buffer.write_count == len(buffer) >= 60


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_dqn_solves_cartpole(new_buffer: NewBuffer) -> None:
    torch.manual_seed(0)
    buffer = new_buffer(capacity=100_000, batch_size=64)
    env = environment()
    env.set_seed(0)
    network = q_network(env, cells=[256, 256])
    explore = EGreedyModule(spec=env.action_spec, eps_init=1.0, eps_end=0.05, annealing_num_steps=8_000)
    loss = DQNLoss(network, action_space=env.action_spec, delay_value=True, double_dqn=False)
    loss.make_value_estimator(gamma=0.99)
    update_target = HardUpdate(loss, value_network_update_interval=UPDATES)
    optimizer = torch.optim.Adam(loss.parameters(), lr=2.3e-3)
    policy = TensorDictSequential(network, explore)
    collector = Collector(env, policy, frames_per_batch=FRAMES, total_frames=100 * 1024, replay_buffer=buffer)
    best, frames = 0.0, 0
    for _ in collector:
        frames += FRAMES
        explore.step(FRAMES)
        if frames < 1024:
            continue
        for _ in range(UPDATES):
            data = buffer.sample()
            value = loss(data)["loss"]
            optimizer.zero_grad()
            value.backward()
            torch.nn.utils.clip_grad_norm_(loss.parameters(), 10)
            optimizer.step()
            update_target.step()
            buffer.update_tensordict_priority(data)
        if frames % 1024 == 0 and greedy_return(network, 5) >= SOLVED:
            best = max(best, greedy_return(network, 20))
            print(f"{frames} frames: best mean return {best:.0f}")
            if best >= SOLVED:
                break
    assert best >= SOLVED


def greedy_return(network: Any, episodes: int) -> float:
    """Mean return of some episodes."""
    env = environment()
    with torch.no_grad():
        returns = [env.rollout(500, network)["next", "reward"].sum().item() for _ in range(episodes)]
    return float(np.mean(returns))
