"""Networks, learners and environments of one's own, in trainers and actors; the best network of a run afterwards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from PIL import Image
from replay_agent import R2D2, DoubleDQN, Trainer, evaluate, make_environment
from replay_agent.acting.environments import UnsupportedEnvironmentError
from replay_agent.commands import replay_eval, replay_play
from replay_agent.dqn.networks import OwnNetwork
from replay_agent.dqn.saved_agents import AGENT_FILE, SavedAgentError
from replay_agent.own_parts import OwnPartError, name_of
from replay_agent.settings.train_settings import saved_settings
from replay_client import ReplayClient
from replay_proto.command_line import new_app, run_app
from safetensors.torch import save_file

from examples import qr_dqn
from tests.agent.short_runs import SHORT_RUN
from tests.agent.training import own_agent
from tests.support.server_process import ServerProcess

OWN = {"env": own_agent.make_env, "learner": own_agent.SquaredErrors, "network": own_agent.Linear}


@pytest.fixture
def trainer_of(tmp_path: Path) -> Callable[..., Trainer]:
    """Creates trainers of short runs."""

    def make(**given: Any) -> Trainer:
        return Trainer(**{"runs_dir": tmp_path, "name": "own", "progress": False, **SHORT_RUN, **given})

    return make


@pytest.fixture
def own_run(trainer_of: Callable[..., Trainer], server: ServerProcess) -> Path:
    """The directory of a run with parts of its own."""
    report = trainer_of(**OWN, server=server.address, keep_table=True).run()
    return Path(report.run_dir)


def test_a_run_learns_with_its_own_parts(own_run: Path, server: ServerProcess) -> None:
    with ReplayClient(server.address) as client:
        table = client["own"]
        assert 7.0 in set(table.read(np.arange(table.describe().inserted)).priorities)
        table.drop()
    learner = own_agent.SquaredErrors.load(own_run)
    assert isinstance(learner.online, OwnNetwork)
    assert isinstance(learner.online.own, own_agent.Linear)


def test_a_resumed_run_keeps_its_settings_unless_others_are_given(
    trainer_of: Callable[..., Trainer], own_run: Path, server: ServerProcess
) -> None:
    saved = saved_settings(own_run)
    resumed = Trainer(own_agent.make_env, resume=own_run, server=server.address, learning_rate=3e-5).settings
    found = resumed.model_dump(mode="json", exclude={"resume", "config"})
    assert found == {**saved, "learning_rate": 3e-5}
    assert resumed.network == name_of(own_agent.Linear)
    with pytest.raises(ValueError, match=r"expected the directory of a run, but .*settings\.json does not exist"):
        Trainer("CartPole-v1", resume=own_run / "absent")


def test_a_network_acts_without_dropout_and_with_averages_of_its_statistics() -> None:
    own = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 2))
    network, observation = OwnNetwork(own), torch.ones(1, 4)
    first, _ = network.act(observation, torch.zeros(1, 0))
    assert torch.equal(first, network.act(observation, torch.zeros(1, 0))[0])
    assert own.training


def test_actors_find_the_parts_by_their_names(trainer_of: Callable[..., Trainer], server: ServerProcess) -> None:
    report = trainer_of(**OWN, server=server.address, actors=1).run()
    assert report.env == "tests.agent.training.own_agent:make_env"
    assert report.updates > 0


def test_the_best_network_is_loaded_and_played(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the environment: `load` does not make one."""
    loaded = DoubleDQN.load(own_run)
    result = evaluate(loaded.online, lambda: make_environment("CartPole-v1"), seeds=range(4))
    capsys.readouterr()
    assert replay_eval.evaluate(own_run, episodes=4) == 0
    assert f"4 episodes: {result.mean:.1f} ±" in capsys.readouterr().out
    video = own_run / "play.gif"
    assert replay_play.play(own_run, episodes=2, video=video) == 0
    returns = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines() if line.startswith("return")]
    assert returns == result.returns[:2].tolist()
    with Image.open(video) as image:
        assert getattr(image, "n_frames", 1) == sum(returns) + len(returns)  # also the first ones


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        (replay_eval.evaluate, "--episodes", "0"),
        (replay_eval.evaluate, "--seed", "-1"),
        (replay_eval.evaluate, "--epsilon", "1.5"),
        (replay_play.play, "--episodes", "0"),
        (replay_play.play, "--seed", "-1"),
        (replay_play.play, "--fps", "0"),
        (replay_play.play, "--video", "play.mp4"),
    ],
)
def test_an_impossible_value_is_refused_before_the_run_is_read(
    capsys: pytest.CaptureFixture[str], command: Callable[..., int], option: str, value: str
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        run_app(new_app("played", "A command.", command), ["a run", option, value])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("played: Invalid value ")
    assert f"for {option}." in line


def test_a_run_that_goes_on_has_its_best_network_in_its_checkpoints(own_run: Path) -> None:
    known = DoubleDQN.load(own_run).weights()
    of_earlier_start = {name: torch.zeros_like(tensor) for name, tensor in known.items()}
    save_file(of_earlier_start, own_run / "best.safetensors")
    assert all(torch.equal(tensor, known[name]) for name, tensor in DoubleDQN.load(own_run).weights().items())
    shutil.rmtree(own_run / "checkpoints")
    assert not any(tensor.any() for tensor in DoubleDQN.load(own_run).weights().values())


def test_another_run_is_refused(own_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SavedAgentError, match="expected a run with algorithm r2d2, got dqn"):
        R2D2.load(own_run)
    with pytest.raises(SavedAgentError, match=r"expected the directory of a run: .*No such file"):
        DoubleDQN.load(tmp_path)
    stored = json.loads((own_run / AGENT_FILE).read_text())
    (own_run / AGENT_FILE).write_text(json.dumps({**stored, "format": 99}))
    with pytest.raises(SavedAgentError, match=r"expected format 1 of .*, got 99"):
        DoubleDQN.load(own_run)
    assert replay_eval.evaluate(own_run) == 1
    assert "replay-eval: expected format 1" in capsys.readouterr().err
    (own_run / AGENT_FILE).write_text("{}")
    with pytest.raises(SavedAgentError, match=r"agent\.json is of another version .*, or corrupt: .*required$"):
        DoubleDQN.load(own_run)
    (own_run / AGENT_FILE).write_text(json.dumps(stored | {"spec": {**stored["spec"], "own": "nowhere:Net"}}))
    with pytest.raises(OwnPartError, match="the network nowhere:Net cannot be found"):
        DoubleDQN.load(own_run)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"network": own_agent.ThreeValues}, OwnPartError, r"values of 2 actions .* got torch.float32\[1, 3\]"),
        ({"network": own_agent.no_network}, OwnPartError, "expected a torch.nn.Module .*, got str"),
        ({"learner": own_agent.Linear}, OwnPartError, "expected a subclass of DoubleDQN"),
        ({"env": own_agent.failing_env}, UnsupportedEnvironmentError, "failing_env failed: RuntimeError: no simulator"),
        ({"env": own_agent.no_env}, UnsupportedEnvironmentError, "expected a gymnasium.Env from .*, got str"),
        ({"env": "nowhere:make"}, UnsupportedEnvironmentError, "No module named 'nowhere'"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    trainer_of: Callable[..., Trainer], given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        trainer_of(**{"env": "CartPole-v1", **given}).run()


def test_parts_that_actors_cannot_import_are_refused(
    trainer_of: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OwnPartError, match="at the top level of a module"):
        trainer_of(env=lambda: gymnasium.make("CartPole-v1"))
    monkeypatch.setattr(own_agent.make_env, "__module__", "__main__")
    with pytest.raises(OwnPartError, match="1 actors can import; __main__:make_env are in the program itself"):
        trainer_of(env=own_agent.make_env, actors=1)
    with pytest.raises(ValueError, match="algorithm dqn with a network of your own"):
        trainer_of(env="CartPole-v1", network=own_agent.Linear, algorithm="r2d2")


def test_quantile_losses_are_those_of_the_paper() -> None:
    """Equations 9 and 10 of Dabney et al. (2018), one pair of quantile and target after another."""
    random = torch.Generator().manual_seed(0)
    quantiles, targets = torch.randn(3, 5, generator=random), 2 * torch.randn(3, 4, generator=random)
    found = qr_dqn.quantile_huber_losses(quantiles, targets)
    for row in range(3):
        expected = 0.0
        for i, quantile in enumerate(quantiles[row].tolist()):
            for target in targets[row].tolist():
                u = target - quantile
                huber = 0.5 * u * u if abs(u) <= 1.0 else abs(u) - 0.5
                expected += abs((i + 0.5) / 5 - (1.0 if u < 0 else 0.0)) * huber / 4
        assert float(found[row]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
def test_qr_dqn_solves_cartpole(trainer_of: Callable[..., Trainer], seed: int, server: ServerProcess) -> None:
    trainer = Trainer(
        "CartPole-v1",
        server=server.address,
        learner=qr_dqn.QRDQN,
        network=qr_dqn.Network,
        seed=seed,
        runs_dir=trainer_of(env="CartPole-v1").settings.runs_dir,
        progress=False,
    )
    assert trainer.run().ending == "solved"
