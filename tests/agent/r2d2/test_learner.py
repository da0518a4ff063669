from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from replay_agent.dqn.networks import NetworkSpec
from replay_agent.r2d2 import R2D2, R2D2Config, RecurrentQNetwork, SequenceBatch, state_size

ACTIONS, UNITS = 3, 4
BURN_IN, LENGTH, N_STEP = 2, 3, 2
PLACES = BURN_IN + LENGTH + N_STEP
EPSILON, ETA = 1e-2, 0.7
CONFIG = R2D2Config(
    learning_rate=1e-2,
    huber_delta=0.05,
    n_step=N_STEP,
    burn_in=BURN_IN,
    sequence_length=LENGTH,
    eta=ETA,
    rescaling_epsilon=EPSILON,
)
# Steps before the anchor, and from the anchor on; the third episode terminates, the fourth is truncated.
BEFORE = [2, 0, 1, 2]
AHEAD = [5, 5, 2, 1]
TERMINATED = 2


def make_learner(*, double: bool = True) -> R2D2:
    torch.manual_seed(3)
    spec = NetworkSpec((2,), "float32", ACTIONS, (4,), dueling=False, lstm_units=UNITS)
    learner = R2D2(spec, replace(CONFIG, double=double), torch.device("cpu"))
    with torch.no_grad():
        for parameter in learner.target.parameters():
            parameter.copy_(torch.randn_like(parameter))  # the networks disagree
    return learner


def make_batch() -> SequenceBatch:
    generator = torch.Generator().manual_seed(5)
    rows = len(BEFORE)
    mask = torch.zeros(rows, PLACES, dtype=torch.bool)
    for row, (before, ahead) in enumerate(zip(BEFORE, AHEAD, strict=True)):
        mask[row, BURN_IN - before : BURN_IN + ahead] = True
    # The first and third episode have a step before their first one; the others begin there.
    state = torch.randn(rows, state_size(UNITS, ACTIONS), generator=generator)
    state[:, 2 * UNITS :] = torch.tensor([[0, 1, 0, 2.5], [0, 0, 0, 0], [1, 0, 0, -3], [0, 0, 0, 0]])
    discount = torch.where(mask, 0.9, 0.0)
    discount[TERMINATED, BURN_IN + AHEAD[TERMINATED] - 1] = 0.0
    return SequenceBatch(
        obs=torch.randn(rows, PLACES, 2, generator=generator),
        action=torch.randint(ACTIONS, (rows, PLACES), generator=generator) * mask,
        reward=5 * torch.randn(rows, PLACES, generator=generator) * mask,
        discount=discount,
        mask=mask,
        state=state,
        weights=torch.rand(rows, generator=generator),
    )


def h(value: float) -> float:
    return math.copysign(math.sqrt(abs(value) + 1) - 1, value) + EPSILON * value


def h_inverse(value: float) -> float:
    root = math.sqrt(1 + 4 * EPSILON * (abs(value) + 1 + EPSILON))
    return math.copysign(((root - 1) / (2 * EPSILON)) ** 2 - 1, value)


def values_of(network: RecurrentQNetwork, batch: SequenceBatch, row: int) -> list[list[float]]:
    """Values at the places from the anchor on, step by step from the stored state."""
    state, values = batch.state[row : row + 1], []
    with torch.no_grad():
        for place in range(BURN_IN - BEFORE[row], PLACES):
            q, state = network.act(batch.obs[row : row + 1, place], state)
            values.append(q[0].tolist())
            if batch.mask[row, place]:  # the next step sees this one's action and reward
                state[0, 2 * UNITS + int(batch.action[row, place])] = 1.0
                state[0, -1] = batch.reward[row, place]
    return values[BEFORE[row] :]


def td_errors_of(learner: R2D2, batch: SequenceBatch, row: int, *, double: bool) -> list[float]:
    """TD errors of the steps to learn by their definition, one by one."""
    online, target = (values_of(network, batch, row) for network in (learner.online, learner.target))
    reward, discount, action = (part[row, BURN_IN:].tolist() for part in (batch.reward, batch.discount, batch.action))
    errors = []
    for place in range(min(AHEAD[row], LENGTH)):
        end = min(place + N_STEP, AHEAD[row])
        chooser = online if double else target
        total = h_inverse(target[end][max(range(ACTIONS), key=chooser[end].__getitem__)])
        for step in reversed(range(place, end)):
            total = reward[step] + discount[step] * total
        errors.append(h(total) - online[place][action[place]])
    return errors


@pytest.mark.parametrize("double", [True, False])
def test_priorities_and_loss_are_those_of_the_definition(double: bool) -> None:
    learner, batch = make_learner(double=double), make_batch()
    errors = [td_errors_of(learner, batch, row, double=double) for row in range(len(BEFORE))]
    sizes = [[abs(error) for error in of_row] for of_row in errors]
    expected = [ETA * max(of_row) + (1 - ETA) * sum(of_row) / len(of_row) for of_row in sizes]
    delta = CONFIG.huber_delta
    huber = [sum(e**2 / 2 if e <= delta else delta * (e - delta / 2) for e in of_row) for of_row in sizes]
    assert errors != [td_errors_of(learner, batch, row, double=not double) for row in range(len(BEFORE))]
    result = learner.update(batch)
    assert result.priorities.tolist() == pytest.approx(expected, rel=1e-4)
    weighted = sum(weight * loss for weight, loss in zip(batch.weights.tolist(), huber, strict=True))
    assert float(result.loss) == pytest.approx(weighted / (len(BEFORE) * LENGTH), rel=1e-4)


def test_the_mean_value_is_in_units_of_return() -> None:
    learner, batch = make_learner(), make_batch()
    values = [
        h_inverse(of_step[int(batch.action[row, BURN_IN + place])])
        for row in range(len(BEFORE))
        for place, of_step in enumerate(values_of(learner.online, batch, row)[: min(AHEAD[row], LENGTH)])
    ]
    assert float(learner.update(batch).mean_value) == pytest.approx(sum(values) / len(values), rel=1e-4)


def test_what_masked_places_hold_does_not_matter_except_for_the_final_observation() -> None:
    batch = make_batch()
    spoiled = replace(batch, obs=batch.obs.clone())
    for row, (before, ahead) in enumerate(zip(BEFORE, AHEAD, strict=True)):
        spoiled.obs[row, : BURN_IN - before] = 1e3
        spoiled.obs[row, BURN_IN + ahead + 1 :] = 1e3
    results = [make_learner().update(each) for each in (batch, spoiled)]
    assert torch.equal(results[0].priorities, results[1].priorities)
    assert torch.equal(results[0].loss, results[1].loss)


def test_gradients_do_not_reach_into_the_burn_in() -> None:
    learner, batch = make_learner(), make_batch()
    before = batch.obs.requires_grad_()
    learner.compute_loss(batch).loss.backward()  # type: ignore[no-untyped-call]
    assert before.grad is not None
    assert not before.grad[:, :BURN_IN].any()
    assert before.grad[:, BURN_IN].any()


def test_repeated_steps_on_one_batch_reduce_its_loss() -> None:
    learner, batch = make_learner(), make_batch()
    losses = [float(learner.update(batch).loss) for _ in range(200)]
    assert losses[-1] < losses[0] / 2


def test_it_learns_to_act_by_an_observation_that_has_passed() -> None:
    """The first observation to learn from has a cue, and only the action that it names pays at the episode's end."""
    learner, rows = make_learner(), 32
    generator = torch.Generator().manual_seed(7)
    steps = BURN_IN + LENGTH
    cue = torch.randint(2, (rows,), generator=generator)
    action = torch.randint(2, (rows, PLACES), generator=generator)
    obs, reward = torch.zeros(rows, PLACES, 2), torch.zeros(rows, PLACES)
    obs[:, BURN_IN, 0] = 2.0 * cue - 1
    obs[:, steps - 1, 1] = 1.0
    reward[:, steps - 1] = 4.0 * (action[:, steps - 1] == cue)
    mask = torch.arange(PLACES).expand(rows, PLACES) < steps
    discount = torch.where(torch.arange(PLACES) < steps - 1, 0.9, 0.0).expand(rows, PLACES)
    batch = SequenceBatch(
        obs, action, reward, discount, mask, torch.zeros(rows, state_size(UNITS, ACTIONS)), torch.ones(rows)
    )
    for _ in range(300):
        learner.update(batch)
    with torch.no_grad():
        best = learner.values(learner.online, batch)[:, LENGTH - 1, :2].argmax(dim=1)
    assert torch.equal(best, cue)
