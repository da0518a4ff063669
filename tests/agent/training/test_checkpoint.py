from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from replay_agent.dqn.divergence import DivergedError
from replay_agent.dqn.double_dqn import DoubleDQN, TransitionBatch
from replay_agent.dqn.learner import DoubleDQNConfig
from replay_agent.dqn.networks import NetworkSpec
from replay_agent.training.checkpoint import CheckpointError, checkpoints, load_latest, save_checkpoint
from replay_agent.training.selection import copy_weights
from safetensors.torch import load_file, save_file

SPEC = NetworkSpec((3,), "float32", actions=2, hidden_sizes=(8,), dueling=True)
STATE = {"env_steps": 40, "history": {"episode_returns": [1.5, 2.0]}, "rng": {"state": 2**100 + 1}}


def make_learner(seed: int, spec: NetworkSpec = SPEC, learning_rate: float = 1e-2) -> DoubleDQN:
    torch.manual_seed(seed)
    return DoubleDQN(spec, DoubleDQNConfig(learning_rate=learning_rate, target_interval=3), torch.device("cpu"))


def random_batch() -> TransitionBatch:
    """A batch from torch's global generator, which also tests whether the generator was restored."""
    return TransitionBatch(
        obs=torch.randn(5, 3),
        action=torch.randint(2, (5,)),
        reward=torch.randn(5),
        discount=torch.full((5,), 0.9),
        next_obs=torch.randn(5, 3),
        weights=torch.rand(5),
    )


def save(directory: Path, step: int, learner: DoubleDQN, keep: int = 2) -> None:
    save_checkpoint(directory, step, learner, STATE, copy_weights(learner.online), keep)


def test_a_restored_learner_goes_on_exactly_as_the_first_one(tmp_path: Path) -> None:
    first = make_learner(seed=1)
    for _ in range(7):
        first.update(random_batch())
    save(tmp_path, 7, first)
    expected = [first.update(random_batch()) for _ in range(10)]

    second = make_learner(seed=2)
    load_latest(tmp_path, second)
    found = [second.update(random_batch()) for _ in range(10)]

    assert second.updates == first.updates == 17
    assert [float(result.loss) for result in found] == [float(result.loss) for result in expected]
    for name, tensor in first.online.state_dict().items():
        assert torch.equal(tensor, second.online.state_dict()[name])
        assert torch.equal(first.target.state_dict()[name], second.target.state_dict()[name])


def test_what_was_saved_along_comes_back(tmp_path: Path) -> None:
    learner = make_learner(seed=1)
    save(tmp_path, 40, learner)
    found = load_latest(tmp_path, make_learner(seed=2))
    assert found.state == STATE
    assert found.best_weights is not None
    assert all(torch.equal(found.best_weights[name], tensor) for name, tensor in learner.online.state_dict().items())


def test_parameters_that_are_used_twice_are_saved_and_come_back(tmp_path: Path) -> None:
    first, second = make_learner(seed=1), make_learner(seed=2)
    for learner in (first, second):
        for network in (learner.online, learner.target):
            network.add_module("again", network.get_submodule("head.value"))
    save(tmp_path, 1, first)
    load_latest(tmp_path, second)
    for name, tensor in first.online.state_dict().items():
        assert torch.equal(tensor, second.online.state_dict()[name])


def test_a_new_learning_rate_wins_over_the_saved_one(tmp_path: Path) -> None:
    first = make_learner(seed=1)
    first.update(random_batch())
    save(tmp_path, 1, first)
    second = make_learner(seed=1, learning_rate=0.5)
    load_latest(tmp_path, second)
    assert second.optimizer.param_groups[0]["lr"] == 0.5


def test_the_newest_is_loaded_and_only_some_are_kept(tmp_path: Path) -> None:
    learner = make_learner(seed=1)
    for step in (5, 90, 1_000):
        learner.update(random_batch())
        save(tmp_path, step, learner)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000000090", "step-000000001000"]
    other = make_learner(seed=2)
    load_latest(tmp_path, other)
    assert other.updates == 3


def test_a_checkpoint_that_was_cut_off_is_not_seen(tmp_path: Path) -> None:
    learner = make_learner(seed=1)
    save(tmp_path, 5, learner)
    (tmp_path / "step-000000000006.partial").mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000000005"]


@pytest.mark.parametrize("operation", range(5))
def test_a_kill_while_the_same_step_is_saved_again_leaves_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: int
) -> None:
    save(tmp_path, 0, make_learner(1))
    left = iter(range(operation))
    rename, rmtree = Path.rename, shutil.rmtree

    def rename_or_die(path: Path, target: Path) -> Path:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return rename(path, target)

    def rmtree_or_die(path: Path, ignore_errors: bool = False) -> None:
        if next(left, None) is None:
            (path / "state.json").unlink(missing_ok=True)
            raise KeyboardInterrupt
        rmtree(path, ignore_errors)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename_or_die)
        patch.setattr(shutil, "rmtree", rmtree_or_die)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 0, make_learner(2))
    load_latest(tmp_path, make_learner(3))
    save(tmp_path, 0, make_learner(4))
    load_latest(tmp_path, make_learner(5))
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000000000"]


def test_nothing_in_a_checkpoint_is_pickled(tmp_path: Path) -> None:
    learner = make_learner(seed=1)
    learner.update(random_batch())
    save(tmp_path, 5, learner)
    assert {path.suffix for path in checkpoints(tmp_path)[0].iterdir()} == {".safetensors", ".json"}


def test_without_a_checkpoint_there_is_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        load_latest(tmp_path / "absent", make_learner(seed=1))


def test_another_network_is_refused_with_advice(tmp_path: Path) -> None:
    save(tmp_path, 5, make_learner(seed=1))
    other = NetworkSpec((3,), "float32", actions=2, hidden_sizes=(16,), dueling=True)
    with pytest.raises(CheckpointError, match="resume with the same"):
        load_latest(tmp_path, make_learner(seed=1, spec=other))


def spoil(learner: DoubleDQN, part: str) -> None:
    """Set one number of the learner to infinity or NaN."""
    with torch.no_grad():
        if part == "the online network":
            next(iter(learner.online.parameters())).view(-1)[0] = torch.nan
        elif part == "the target network":
            next(iter(learner.target.parameters())).view(-1)[-1] = -torch.inf
        else:
            next(iter(learner.optimizer.state.values()))["exp_avg_sq"].view(-1)[0] = torch.inf


@pytest.mark.parametrize("part", ["the online network", "the target network", "the optimizer's state"])
def test_numbers_that_are_not_finite_are_not_saved_and_push_no_checkpoint_out(tmp_path: Path, part: str) -> None:
    learner = make_learner(seed=1)
    learner.update(random_batch())
    save(tmp_path, 1, learner, keep=1)
    spoil(learner, part)
    with pytest.raises(DivergedError, match=f"gradient step 1, not finite: {part}"):
        save(tmp_path, 2, learner, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000001"]


@pytest.mark.parametrize("file", ["online", "target", "optimizer", "best"])
def test_a_checkpoint_that_is_not_finite_is_set_aside_for_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str
) -> None:
    learner = make_learner(seed=1)
    for step in (1, 2):
        learner.update(random_batch())
        save(tmp_path, step, learner)
    path = tmp_path / "step-000000000002" / f"{file}.safetensors"
    tensors = load_file(path)
    largest = max(tensors, key=lambda name: tensors[name].numel())
    tensors[largest].view(-1)[0] = torch.nan
    save_file(tensors, path)

    found = make_learner(seed=2)
    load_latest(tmp_path, found)
    assert found.updates == 1
    assert f"step-000000000002 is unusable (not finite: {file}.safetensors)" in caplog.text
    assert "loading step-000000000001" in caplog.text
    save(tmp_path, 1, found, keep=1)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000000001"]


@pytest.mark.parametrize("file", ["online.safetensors", "random.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["cut off", "gone"])
def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(tmp_path: Path, file: str, damage: str) -> None:
    learner = make_learner(seed=1)
    for step in (1, 2):
        learner.update(random_batch())
        save(tmp_path, step, learner)
    path = tmp_path / "step-000000000002" / file
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:20])
    found = make_learner(seed=2)
    load_latest(tmp_path, found)
    assert found.updates == 1


def test_where_no_checkpoint_can_be_used_each_is_named_and_left_alone(tmp_path: Path) -> None:
    learner = make_learner(seed=1)
    for step in (1, 2):
        save(tmp_path, step, learner)
        (tmp_path / f"step-{step:012d}" / "state.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"step-000000000002: damaged.*step-000000000001: damaged"):
        load_latest(tmp_path, learner)
    assert len(checkpoints(tmp_path)) == 2
