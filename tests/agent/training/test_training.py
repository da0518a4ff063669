"""Short runs with a real server: learning, resuming, a lost table, stop requests."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from replay_agent.acting.evaluation import EvaluationStoppedError
from replay_agent.acting.seeds import RunSeeds
from replay_agent.distributed.run_tables import ActorTask, RunTables
from replay_agent.processes.signals import StopRequest
from replay_agent.reporting.progress import ProgressView
from replay_agent.settings.train_settings import TrainSettings
from replay_agent.training.run import train
from replay_agent.training.training_loop import Ending, TrainingLoop
from replay_client import Column, ReplayClient, TableExistsError, TableNotFoundError
from rich.console import Console

from tests.agent.corridor import BEST_RETURN, CORRIDOR_ID, PICTURED_ID
from tests.agent.short_runs import Watcher
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.filterwarnings("ignore:.*share an object:UserWarning")

QUIET = Console(quiet=True)
CORRIDOR_RUN = {
    "env": CORRIDOR_ID,
    "steps": 4_000,
    "epsilon_steps": 1_500,
    "learning_rate": 1e-3,
    "target_tau": 0.05,
    "hidden_sizes": (32,),
    "solved_return": BEST_RETURN - 1e-6,
}


@pytest.mark.parametrize("backend", ["sum_tree", "rank", "uniform"])
def test_a_run_learns_what_is_best(
    server: ServerProcess, settings_of: Callable[..., TrainSettings], backend: str
) -> None:
    settings = settings_of(server=server.address, backend=backend, dueling=True, n_step=2, **CORRIDOR_RUN)
    report = train(settings, StopRequest(), QUIET)
    assert report.ending == Ending.SOLVED
    assert report.evaluation is not None
    assert report.evaluation.mean == pytest.approx(BEST_RETURN)


def test_a_run_learns_from_pictures(server: ServerProcess, settings_of: Callable[..., TrainSettings]) -> None:
    settings = settings_of(server=server.address, **{**CORRIDOR_RUN, "env": PICTURED_ID})
    report = train(settings, StopRequest(), QUIET)
    assert report.evaluation is not None
    assert report.evaluation.mean == pytest.approx(BEST_RETURN)


def test_a_run_leaves_curve_logs_result_and_checkpoint_and_takes_its_table_away(
    server: ServerProcess, settings_of: Callable[..., TrainSettings], tmp_path: Path
) -> None:
    report = train(settings_of(server=server.address, name="one", tensorboard=True), StopRequest(), QUIET)
    run = tmp_path / "runs" / "one"
    assert report.curve == str(run / "curve.png")
    assert (run / "curve.png").stat().st_size > 0
    assert list((run / "tensorboard").glob("events.out.*"))
    assert list((run / "checkpoints").iterdir())
    assert json.loads((run / "result.json").read_text())["env_steps"] == 900
    with ReplayClient(server.address) as client, pytest.raises(TableNotFoundError):
        client.table("one")


def test_a_named_table_is_left_with_every_step_in_it(
    server: ServerProcess, settings_of: Callable[..., TrainSettings]
) -> None:
    train(settings_of(server=server.address, table="kept", n_step=5), StopRequest(), QUIET)
    with ReplayClient(server.address) as client:
        table = client.table("kept")
        rows = table.read(np.arange(table.describe().inserted))
        table.drop()
    assert rows.ends is not None
    assert (rows.ends == 0).sum() == 900
    assert len({*rows.priorities[rows.ends == 0].tolist()}) > 10  # some were used for learning


def test_gradient_steps_keep_to_the_replay_ratio(make_trainer: Callable[..., TrainingLoop]) -> None:
    trainer = make_trainer(replay_ratio=0.5, steps=500, learning_starts=101)
    assert trainer.train(ProgressView(), None) is Ending.STEPS_DONE
    assert trainer.learner.updates == 200


def test_validations_are_postponed_when_they_have_taken_their_share(make_trainer: Callable[..., TrainingLoop]) -> None:
    trainer = make_trainer(steps=900, validate_interval=100, validation_share=1e-9)
    assert trainer.train(ProgressView(), None) is Ending.STEPS_DONE
    first, last = trainer.history.validation_steps  # the last network is always validated
    assert 100 <= first < 200
    assert last == 900


def test_a_run_says_what_learning_waits_for(make_trainer: Callable[..., TrainingLoop]) -> None:
    trainer = make_trainer(steps=500, learning_starts=101)
    assert trainer.status().note == "filling the table: 0 of 101 rows"
    watcher = Watcher(500, lambda: None)
    trainer.train(watcher, None)
    assert [status.note for status in watcher.statuses].count("validating") == 2
    assert watcher.statuses[-1].note == ""


def test_a_run_whose_table_was_dropped_makes_it_anew_and_goes_on(
    make_trainer: Callable[..., TrainingLoop], server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(name="dropped", steps=3_000)
    with ReplayClient(server.address) as client:
        watcher = Watcher(800, lambda: client.drop_table("dropped"))
        with caplog.at_level(logging.WARNING):
            assert trainer.train(watcher, None) is Ending.STEPS_DONE
        assert watcher.acted_at is not None
        assert any("creating a new one" in message for message in caplog.messages)
        assert client.table("dropped").describe().size > 100
    updates = {status.updates for status in watcher.statuses if status.env_steps > watcher.acted_at}
    assert len(updates) > 1  # it continued to learn


def test_a_run_whose_table_was_replaced_by_an_equal_one_goes_on(
    make_trainer: Callable[..., TrainingLoop], server: ServerProcess
) -> None:
    trainer = make_trainer(name="replaced", steps=3_000)
    with ReplayClient(server.address) as client:

        def replace() -> None:
            old, steps = client.table("replaced"), client.table("replaced").steps
            assert steps is not None
            client.drop_table("replaced")
            client.create_table(
                "replaced",
                columns={**old.schema.columns, **steps.derived},
                capacity=old.capacity,
                backend=old.backend,
                seed=RunSeeds(0).draws,
                if_exists="error",
                steps=steps.item,
                **old.parameters,
            )

        assert trainer.train(Watcher(800, replace), None) is Ending.STEPS_DONE


def test_a_run_goes_on_when_the_server_is_restarted(
    start_server: Callable[..., ServerProcess], make_trainer: Callable[..., TrainingLoop]
) -> None:
    own = start_server()
    trainer = make_trainer(server=own.address, steps=3_000)

    def restart() -> None:
        own.kill()
        own.restart()

    watcher = Watcher(800, restart)
    assert trainer.train(watcher, None) is Ending.STEPS_DONE
    assert watcher.acted_at is not None


def test_a_table_of_another_kind_under_the_same_name_is_refused_with_advice(
    make_trainer: Callable[..., TrainingLoop], server: ServerProcess
) -> None:
    with ReplayClient(server.address) as client:
        other = client.create_table("taken", columns={"x": Column("int64")}, capacity=10)
        with pytest.raises(TableExistsError) as refusal:
            make_trainer(table="taken")
        other.drop()
    assert "replay drop taken" in "".join(refusal.value.__notes__)


def test_a_stopped_run_is_resumed_where_it_was(
    make_trainer: Callable[..., TrainingLoop], settings_of: Callable[..., TrainSettings], tmp_path: Path
) -> None:
    stop = StopRequest()
    first = make_trainer(stop, name="resumed", steps=5_000)
    assert first.train(Watcher(700, stop.set), None) is Ending.STOPPED
    first.save()
    first.close()
    stopped_at = first.pacer.env_steps

    second = make_trainer(resume=tmp_path / "runs" / "resumed", steps=stopped_at + 300)
    second.resume()
    assert second.pacer.env_steps == stopped_at
    assert second.learner.updates == first.learner.updates
    assert second.history == first.history
    assert second.selector.best_mean == first.selector.best_mean
    assert second.status().epsilon == first.status().epsilon
    for name, tensor in first.learner.online.state_dict().items():
        assert torch.equal(tensor, second.learner.online.state_dict()[name])
    assert second.train(ProgressView(), None) is Ending.STEPS_DONE
    assert second.pacer.env_steps == stopped_at + 300


@pytest.mark.parametrize(("table", "counted"), [(None, 40), ("shared-by-runs", 0)])
def test_rows_that_came_after_the_checkpoint_are_steps_of_the_run_where_the_table_is_its_own(
    make_trainer: Callable[..., TrainingLoop], server: ServerProcess, tmp_path: Path, table: str | None, counted: int
) -> None:
    first = make_trainer(name=f"counted-{counted}", table=table, steps=300)
    first.train(ProgressView(), None)
    first.save()
    first.close()
    credit = first.pacer.credit
    with ReplayClient(server.address) as client:
        rows = client.table(table or f"counted-{counted}")
        stats = rows.stats()
        assert stats.steps is not None
        closing = round(40 * stats.steps.closing / stats.size)
        with rows.writer() as writer:
            for _ in range(40):
                writer.append(frame=np.zeros(rows.schema["frame"].shape), action=0, step_reward=0.0)
    second = make_trainer(resume=tmp_path / "runs" / f"counted-{counted}", table=table)
    second.resume()
    # It is estimated how many of the new rows close an episode.
    steps = counted - closing if counted else 0
    assert second.pacer.env_steps == pytest.approx(300 + steps, abs=1)
    assert second.pacer.credit == credit + (second.pacer.env_steps - 300) * 0.25
    assert second.pacer.has_rows


def test_a_resumed_run_whose_table_is_gone_says_that_it_fills_a_new_one(
    make_trainer: Callable[..., TrainingLoop], server: ServerProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = make_trainer(name="emptied", steps=300)
    first.train(ProgressView(), None)
    first.save()
    first.close()
    with ReplayClient(server.address) as client:
        client.drop_table("emptied")
    second = make_trainer(resume=tmp_path / "runs" / "emptied", steps=500)
    second.resume()
    assert "table is gone: learning resumes at 100 rows" in caplog.text
    assert not second.pacer.has_rows
    assert second.train(ProgressView(), None) is Ending.STEPS_DONE


def test_actors_of_a_resumed_run_get_other_seeds_than_before(
    make_trainer: Callable[..., TrainingLoop], client: ReplayClient, tmp_path: Path
) -> None:
    def seed_of(trainer: TrainingLoop) -> int:
        task = ActorTask.from_state(client.latest(RunTables.of(trainer.run.name).task).values)
        return RunSeeds(task.seed, task.starts).actor(7)

    first = make_trainer(name="joined")
    seed = seed_of(first)
    first.save()
    second = make_trainer(resume=tmp_path / "runs" / "joined")
    second.resume()
    assert seed_of(second) != seed


def test_equal_seeds_give_equal_runs_in_lockstep(make_trainer: Callable[..., TrainingLoop]) -> None:
    networks, histories = [], []
    for seed in (3, 3, 4):
        trainer = make_trainer(lockstep=True, seed=seed, steps=400)
        trainer.train(ProgressView(), None)
        networks.append(torch.cat([tensor.flatten() for tensor in trainer.learner.online.state_dict().values()]))
        histories.append(trainer.history)
    assert torch.equal(networks[0], networks[1])
    assert histories[0] == histories[1]
    assert not torch.equal(networks[0], networks[2])


def test_the_last_evaluation_is_played_with_the_best_network(make_trainer: Callable[..., TrainingLoop]) -> None:
    trainer = make_trainer(**CORRIDOR_RUN)
    trainer.train(ProgressView(), None)
    assert trainer.selector.best_mean == pytest.approx(BEST_RETURN)
    with torch.no_grad():
        for parameter in trainer.learner.online.parameters():
            parameter.zero_()
    assert trainer.evaluate_best().mean == pytest.approx(BEST_RETURN)


def test_a_stop_breaks_off_the_evaluation(make_trainer: Callable[..., TrainingLoop]) -> None:
    stop = StopRequest()
    trainer = make_trainer(stop)
    stop.set()
    with pytest.raises(EvaluationStoppedError):
        trainer.evaluate_best()


def test_a_second_run_of_the_same_name_is_refused_with_advice(
    settings_of: Callable[..., TrainSettings], server: ServerProcess
) -> None:
    settings = settings_of(server=server.address, name="twice", steps=150)
    train(settings, StopRequest(), QUIET)
    with pytest.raises(FileExistsError, match="resume it with --resume"):
        train(settings, StopRequest(), QUIET)


def test_a_file_in_place_of_the_directory_of_runs_is_refused_with_advice(
    settings_of: Callable[..., TrainSettings], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    expected = "--runs-dir: expected a directory in which .* can create x, got .*file: Not a directory"
    with pytest.raises(NotADirectoryError, match=expected):
        train(settings_of(runs_dir=tmp_path / "file", name="x"), StopRequest(), QUIET)


def test_a_checkpoint_names_the_replay_checkpoint_it_belongs_to(
    start_server: Callable[..., ServerProcess], settings_of: Callable[..., TrainSettings], tmp_path: Path
) -> None:
    server = start_server("--checkpoint-dir", str(tmp_path / "kept"))
    report = train(settings_of(server=server.address, replay_checkpoints=True, name="named"), StopRequest(), QUIET)
    state = json.loads(next((Path(report.run_dir) / "checkpoints").glob("step-*/state.json")).read_text())
    with ReplayClient(server.address) as client:
        (made,) = client.checkpoints()
    assert state["run"]["replay_checkpoint"] == made.name == "named-000001"
    assert made.tables["named"].size > 0


def test_a_server_without_checkpoints_stops_no_run(
    server: ServerProcess, settings_of: Callable[..., TrainSettings], caplog: pytest.LogCaptureFixture
) -> None:
    report = train(settings_of(server=server.address, replay_checkpoints=True), StopRequest(), QUIET)
    state = json.loads(next((Path(report.run_dir) / "checkpoints").glob("step-*/state.json")).read_text())
    assert state["run"]["replay_checkpoint"] is None
    assert "wrote no checkpoint" in caplog.text
