from __future__ import annotations

import pytest
import torch
from replay_agent.dqn.double_dqn import DoubleDQN, TransitionBatch
from replay_agent.dqn.learner import DoubleDQNConfig, Learner
from replay_agent.dqn.networks import NetworkSpec, build_network
from torch import nn

SPEC = NetworkSpec((2,), "float32", actions=2, hidden_sizes=(4,), dueling=False)
CPU = torch.device("cpu")


def make_learner(**config: float | bool) -> DoubleDQN:
    torch.manual_seed(3)
    return DoubleDQN(SPEC, DoubleDQNConfig(learning_rate=1e-2, **config), CPU)  # type: ignore[arg-type]


def make_batch(rows: int = 6, discount: float = 0.9) -> TransitionBatch:
    generator = torch.Generator().manual_seed(5)
    return TransitionBatch(
        obs=torch.randn(rows, 2, generator=generator),
        action=torch.randint(2, (rows,), generator=generator),
        reward=torch.randn(rows, generator=generator),
        discount=torch.full((rows,), discount),
        next_obs=torch.randn(rows, 2, generator=generator),
        weights=torch.rand(rows, generator=generator),
    )


def shift_target(learner: DoubleDQN) -> None:
    """Make the target network prefer a different action than the online network."""
    with torch.no_grad():
        for parameter in learner.target.parameters():
            parameter.neg_()


def expected_td_errors(learner: DoubleDQN, batch: TransitionBatch, *, double: bool) -> list[float]:
    """TD errors by their definition, row by row."""
    found = []
    with torch.no_grad():
        for row in range(len(batch.reward)):
            next_online = learner.online(batch.next_obs[row : row + 1])[0]
            next_target = learner.target(batch.next_obs[row : row + 1])[0]
            best = int(next_online.argmax()) if double else int(next_target.argmax())
            target = float(batch.reward[row]) + float(batch.discount[row]) * float(next_target[best])
            value = float(learner.online(batch.obs[row : row + 1])[0, batch.action[row]])
            found.append(abs(target - value))
    return found


@pytest.mark.parametrize("double", [True, False])
def test_priorities_are_absolute_unweighted_td_errors_from_before_the_step(double: bool) -> None:
    learner, batch = make_learner(double=double), make_batch()
    shift_target(learner)
    expected = expected_td_errors(learner, batch, double=double)
    assert learner.update(batch).priorities.tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("tau", [1.0, 0.01])
def test_the_target_network_has_the_statistics_of_the_online_network(tau: float) -> None:
    class Normalized(DoubleDQN):
        def __init__(self) -> None:
            network = build_network(SPEC)
            network.torso = nn.Sequential(nn.BatchNorm1d(2), network.torso)
            Learner.__init__(self, SPEC, network, DoubleDQNConfig(learning_rate=1e-2, target_tau=tau), CPU)

    learner = Normalized()
    for _ in range(3):
        learner.update(make_batch())
    statistics = dict(learner.target.named_buffers())
    assert statistics["torso.0.num_batches_tracked"] >= 3
    for name, online in learner.online.named_buffers():
        torch.testing.assert_close(statistics[name], online)


def test_double_and_plain_dqn_differ_where_the_networks_disagree() -> None:
    double, plain = make_learner(double=True), make_learner(double=False)
    for learner in (double, plain):
        shift_target(learner)
    assert double.update(make_batch()).priorities.tolist() != plain.update(make_batch()).priorities.tolist()


def test_rows_that_terminated_learn_from_the_reward_alone() -> None:
    learner, batch = make_learner(), make_batch(discount=0.0)
    values = learner.online(batch.obs).gather(1, batch.action.unsqueeze(1)).squeeze(1)
    expected = (batch.reward - values).abs().tolist()
    assert learner.update(batch).priorities.tolist() == pytest.approx(expected, rel=1e-5)


def test_the_target_network_is_copied_every_interval_when_tau_is_one() -> None:
    learner = make_learner(target_interval=3, target_tau=1.0)
    before = [parameter.clone() for parameter in learner.target.parameters()]
    for _ in range(2):
        learner.update(make_batch())
    assert all(torch.equal(old, new) for old, new in zip(before, learner.target.parameters(), strict=True))
    learner.update(make_batch())
    pairs = zip(learner.online.parameters(), learner.target.parameters(), strict=True)
    assert all(torch.equal(online, target) for online, target in pairs)


def test_the_target_network_follows_by_tau() -> None:
    learner = make_learner(target_interval=1, target_tau=0.25)
    before = [parameter.clone() for parameter in learner.target.parameters()]
    learner.update(make_batch())
    for old, online, new in zip(before, learner.online.parameters(), learner.target.parameters(), strict=True):
        torch.testing.assert_close(new, 0.75 * old + 0.25 * online)


def test_gradients_are_clipped_to_their_largest_length() -> None:
    learner = make_learner(max_grad_norm=1e-3)
    result = learner.update(make_batch())
    length = torch.sqrt(sum((p.grad**2).sum() for p in learner.online.parameters() if p.grad is not None))  # type: ignore[arg-type]
    assert result.grad_norm > 1e-3
    assert float(length) == pytest.approx(1e-3, rel=1e-3)


def test_repeated_steps_on_one_batch_reduce_its_loss() -> None:
    learner, batch = make_learner(target_interval=10_000), make_batch()
    losses = [float(learner.update(batch).loss) for _ in range(200)]
    assert losses[-1] < losses[0] / 5
