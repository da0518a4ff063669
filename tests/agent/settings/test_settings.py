from __future__ import annotations

import re
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from replay_agent.acting.environments import inspect_environment
from replay_agent.algorithms import network_spec
from replay_agent.settings.actor_settings import load_actor_settings
from replay_agent.settings.presets import preset
from replay_agent.settings.train_settings import NOT_RESUMED, SETTINGS_FILE, TrainSettings, load_train_settings


@pytest.fixture(autouse=True)
def _no_inherited_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REPLAY_TRAIN_BATCH_SIZE", raising=False)


def refusal(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """The message printed for invalid settings."""
    with pytest.raises(SystemExit) as end:
        load_train_settings(flags)
    assert end.value.code == 2
    return capsys.readouterr().err


def test_flags_win_over_the_environment_which_wins_over_the_file_which_wins_over_the_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "train.toml"
    config.write_text("batch_size = 11\nn_step = 5\ngamma = 0.5\n")
    monkeypatch.setenv("REPLAY_TRAIN_BATCH_SIZE", "22")
    monkeypatch.setenv("REPLAY_TRAIN_N_STEP", "6")
    settings = load_train_settings(["--config", str(config), "--batch-size", "33"])
    assert (settings.batch_size, settings.n_step, settings.gamma) == (33, 6, 0.5)
    assert settings.learning_rate == preset("CartPole-v1", "dqn")["learning_rate"]


def test_a_preset_belongs_to_its_environment() -> None:
    assert load_train_settings(["--env", "Acrobot-v1"]).solved_return == preset("Acrobot-v1", "dqn")["solved_return"]
    unknown = load_train_settings(["--env", "Taxi-v3"])
    assert unknown.solved_return is None
    assert unknown.steps == TrainSettings.model_fields["steps"].default


def test_a_preset_belongs_to_its_algorithm() -> None:
    dqn = load_train_settings(["--env", "CartPole-v1"])
    r2d2 = load_train_settings(["--env", "CartPole-v1", "--algorithm", "r2d2"])
    other = load_train_settings(["--env", "Taxi-v3", "--algorithm", "r2d2"])
    # A gradient step of R2D2 learns from every step of its sequences.
    learned = [each.replay_ratio * each.batch_size * each.sequence_length for each in (r2d2, other)]
    assert all(steps <= dqn.replay_ratio * dqn.batch_size for steps in learned)


def test_beta_does_not_fall_when_a_run_is_resumed_with_more_steps(tmp_path: Path) -> None:
    load_train_settings(["--steps", "2000"]).save(tmp_path / SETTINGS_FILE)
    resumed = load_train_settings(["--resume", str(tmp_path), "--steps", "4000"])
    assert (resumed.steps, resumed.annealing_steps) == (4000, 2000)
    assert load_train_settings(["--resume", str(tmp_path), "--beta-steps", "none"]).annealing_steps == 2000


def test_settings_that_cannot_be_written_leave_the_old_ones(tmp_path: Path) -> None:
    path = tmp_path / SETTINGS_FILE
    load_train_settings(["--seed", "1"]).save(path)
    with limited_file_size(100), pytest.raises(OSError, match="File too large"):
        load_train_settings(["--seed", "2"]).save(path)
    assert load_train_settings(["--resume", str(tmp_path)]).seed == 1


@contextmanager
def limited_file_size(most: int) -> Iterator[None]:
    """Let this process write files of so many bytes at most."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_the_network_scales_observations_where_the_settings_say_so() -> None:
    env = inspect_environment("MountainCar-v0")
    flags = ["--env", "MountainCar-v0"]
    assert network_spec(load_train_settings(flags), env).bounds == env.bounds
    assert network_spec(load_train_settings([*flags, "--no-scale-observations"]), env).bounds is None
    pixels = replace(env, observation_shape=(84, 84, 4), observation_dtype="uint8")
    assert network_spec(load_train_settings(flags), pixels).bounds is None


def test_only_r2d2_has_an_lstm() -> None:
    env = inspect_environment("CartPole-v1")
    assert network_spec(load_train_settings([]), env).lstm_units == 0
    assert network_spec(load_train_settings(["--algorithm", "r2d2", "--lstm-units", "7"]), env).lstm_units == 7


def test_a_resumed_run_keeps_its_settings_unless_they_are_given_anew(tmp_path: Path) -> None:
    load_train_settings(["--env", "Acrobot-v1", "--batch-size", "7", "--gamma", "0.9"]).save(tmp_path / SETTINGS_FILE)
    settings = load_train_settings(["--resume", str(tmp_path), "--gamma", "0.8"])
    assert (settings.env, settings.batch_size, settings.gamma) == ("Acrobot-v1", 7, 0.8)
    assert settings.resume == tmp_path


def test_early_stopping_that_was_switched_off_stays_off_when_the_run_is_resumed(tmp_path: Path) -> None:
    flags = ["--env", "CartPole-v1", "--solved-return", "none", "--hidden-sizes", "none"]
    first = load_train_settings(flags)
    assert preset("CartPole-v1", "dqn")["solved_return"] is not None
    assert (first.solved_return, first.hidden_sizes) == (None, None)
    first.save(tmp_path / SETTINGS_FILE)
    resumed = load_train_settings(["--resume", str(tmp_path)])
    left_out = {"resume", "beta_steps"}
    assert resumed.model_dump(exclude=left_out) == first.model_dump(exclude=left_out)


def test_every_setting_that_may_have_no_value_takes_none_back_on_resume(tmp_path: Path) -> None:
    optional = [name for name, field in TrainSettings.model_fields.items() if type(None) in get_args(field.annotation)]
    assert {"solved_return", "hidden_sizes", "threads", "beta_steps", "act"} <= set(optional)
    config = tmp_path / "none.toml"
    config.write_text("".join(f'{name} = "none"\n' for name in optional if name not in NOT_RESUMED))
    load_train_settings([]).save(tmp_path / SETTINGS_FILE)
    resumed = load_train_settings(["--resume", str(tmp_path), "--config", str(config)])
    assert {getattr(resumed, name) for name in optional if name not in NOT_RESUMED} == {None}


@pytest.mark.parametrize("word", ["none", "None", "NONE"])
def test_none_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("REPLAY_TRAIN_SOLVED_RETURN", word)
    assert load_train_settings([]).solved_return is None


def test_the_trainer_acts_unless_actors_are_started_or_it_is_told() -> None:
    assert load_train_settings([]).acts
    assert not load_train_settings(["--actors", "2"]).acts
    assert load_train_settings(["--actors", "2", "--act"]).acts
    assert not load_train_settings(["--no-act"]).acts


def test_a_table_of_the_runs_own_is_dropped_and_a_named_one_is_kept() -> None:
    assert load_train_settings([]).drops_table
    assert not load_train_settings(["--table", "shared"]).drops_table
    assert load_train_settings(["--table", "shared", "--no-keep-table"]).drops_table
    assert not load_train_settings(["--keep-table"]).drops_table


def test_sizes_are_read_from_flags_and_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_train_settings(["--hidden-sizes", "64,32"]).hidden_sizes == (64, 32)
    monkeypatch.setenv("REPLAY_TRAIN_HIDDEN_SIZES", "16,8")
    assert load_train_settings([]).hidden_sizes == (16, 8)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--server", "nowhere"], "--server: expected HOST:PORT"),
        (["--batch-size", "0"], "--batch-size: input should be greater than or equal to 1, got '0'"),
        (["--hidden-sizes", "0"], "--hidden-sizes.0: input should be greater than 0, got '0'"),
        (["--lockstep", "--actors", "2"], "no actors with lockstep: the trainer acts alone"),
        (["--replay-ratio", "inf"], "--replay-ratio: input should be a finite number"),
        (["--replay-ratio", "1e300"], "--replay-ratio: input should be less than or equal to 1000000"),
        (["--learning-rate", "nan"], "--learning-rate: input should be a finite number"),
        (["--learning-starts", "300", "--capacity", "200"], "learning_starts 300, capacity 200"),
        (["--n-step", "5", "--learning-starts", "4"], "n_step 5, learning_starts 4"),
        (["--steps", "99", "--learning-starts", "100"], "steps 99, learning_starts 100, replay_ratio 1"),
        (["--steps", "1100", "--replay-ratio", "0.009"], "steps 1100, learning_starts 1000, replay_ratio 0.009"),
        (
            ["--algorithm", "r2d2", "--sequence-period", "21", "--sequence-length", "20"],
            "sequence_period 21, sequence_length 20",
        ),
        (
            ["--algorithm", "r2d2", "--sequence-length", "998"],
            "sequence_length 998, n_step 5, learning_starts 1000",
        ),
        (
            ["--algorithm", "r2d2", "--burn-in", "4076", "--sequence-length", "17", "--n-step", "3"],
            "below 4096; got burn_in 4076, sequence_length 17, n_step 3",
        ),
        (["--algorithm", "r2d2", "--eta", "1.5"], "--eta: input should be less than or equal to 1"),
        (["--algorithm", "a3c"], "--algorithm: input should be 'dqn' or 'r2d2', got 'a3c'"),
        (["--table", "no good"], "--table: string should match pattern"),
    ],
)
def test_what_cannot_be_used_is_named_with_what_came(
    capsys: pytest.CaptureFixture[str], flags: list[str], complaint: str
) -> None:
    assert complaint in refusal(capsys, *flags)


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--config: expected a TOML file, got 'absent.toml'" in refusal(capsys, "--config", "absent.toml")


def test_a_directory_without_a_run_cannot_be_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--resume: expected the directory of a run" in refusal(capsys, "--resume", str(tmp_path))
    for content in (b"", b"\xff", b"[]"):
        (tmp_path / SETTINGS_FILE).write_bytes(content)
        said = refusal(capsys, "--resume", str(tmp_path))
        assert f"--resume: expected the settings of a run in {tmp_path / SETTINGS_FILE}, got " in said


def test_help_names_every_flag_with_its_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        load_train_settings(["--help"])
    assert end.value.code == 0
    page = capsys.readouterr().out
    for name, field in TrainSettings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in page
        assert field.description


def test_flags_cannot_be_abbreviated() -> None:
    with pytest.raises(SystemExit):
        load_train_settings(["--batch", "3"])


def test_an_actor_needs_to_know_an_address_and_may_be_told_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_actor_settings(["--server", "buffer:6"])
    assert (settings.server, settings.run) == ("buffer:6", None)
    monkeypatch.setenv("REPLAY_ACTOR_RUN", "pong-7")
    assert load_actor_settings([]).run == "pong-7"


def test_ape_x_needs_several_actors_and_priorities_of_actors_need_transitions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--exploration", "ape-x"]
    assert "2 or more actors with exploration ape-x" in refusal(capsys, *flags)
    assert "2 or more actors with exploration ape-x" in refusal(capsys, *flags, "--actors", "1")
    assert "got algorithm r2d2" in refusal(capsys, "--actor-priorities", "--algorithm", "r2d2")
    for more, expected in (
        (["--actors", "2"], (2, True)),
        (["--actors", "1", "--act"], (2, True)),
        (["--actors", "1", "--ape-x-actors", "5"], (5, True)),
        (["--actors", "2", "--algorithm", "r2d2"], (2, False)),
        (["--actors", "2", "--no-actor-priorities"], (2, False)),
    ):
        settings = load_train_settings([*flags, *more])
        assert (settings.explorers, settings.actors_estimate) == expected
    assert not load_train_settings(["--actors", "2"]).actors_estimate


def test_rainbow_has_the_hyperparameters_of_its_paper() -> None:
    # Hessel et al. (2018), table 1; a step is 4 frames.
    settings = load_train_settings(["--preset", "rainbow", "--env", "ALE/Breakout-v5"])
    assert settings.learning_starts == 80_000 / 4
    assert (settings.learning_rate, settings.adam_epsilon) == (6.25e-5, 1.5e-4)
    assert (settings.epsilon_start, settings.epsilon_end) == (0.0, 0.0)
    assert (settings.noisy, settings.noisy_sigma) == (True, 0.5)
    assert settings.target_interval / settings.replay_ratio == 32_000 / 4
    assert (settings.backend, settings.alpha, settings.beta_start) == ("sum_tree", 0.5, 0.4)
    assert (settings.n_step, settings.gamma, settings.batch_size) == (3, 0.99, 32)
    assert (settings.atoms, settings.value_min, settings.value_max) == (51, -10.0, 10.0)
    assert (settings.double, settings.dueling, settings.clip_rewards) == (True, True, True)
    assert settings.capacity == 1_000_000


def test_each_part_of_rainbow_is_a_switch() -> None:
    env = inspect_environment("CartPole-v1")
    rainbow = network_spec(load_train_settings(["--preset", "rainbow"]), env)
    assert (rainbow.atoms, rainbow.noisy_sigma, rainbow.dueling) == (51, 0.5, True)
    less = network_spec(load_train_settings(["--preset", "rainbow", "--atoms", "0", "--no-noisy", "--no-dueling"]), env)
    assert (less.atoms, less.noisy_sigma, less.dueling) == (0, 0.0, False)


def test_a_noisy_network_explores_alone_unless_it_is_told_otherwise() -> None:
    noisy = load_train_settings(["--noisy"])
    assert (noisy.epsilon_start, noisy.epsilon_end) == (0.0, 0.0)
    assert load_train_settings(["--noisy", "--epsilon-start", "0.5"]).epsilon_start == 0.5
    assert load_train_settings([]).epsilon_end == preset("CartPole-v1", "dqn")["epsilon_end"] > 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--atoms", "1"], "expected atoms of 2 or more"),
        (["--atoms", "51", "--value-min", "3", "--value-max", "3"], "value_min below value_max"),
        (["--atoms", "51", "--algorithm", "r2d2"], "expected algorithm dqn .* with atoms or noisy; got algorithm r2d2"),
        (["--noisy", "--network", "mine:Network"], "with atoms or noisy; got algorithm dqn, network mine:Network"),
        (["--preset", "rainbow", "--algorithm", "r2d2"], "with atoms or noisy; got algorithm r2d2"),
        (["--preset", "sunshine"], "rainbow"),
        (["--atoms", "51", "--actor-priorities"], "priorities are KL divergences"),
        (["--http-port", "0", "--http-host", "0.0.0.0"], "anyone could read the metrics; got http_host 0.0.0.0"),
        (["--server-config", "s.toml"], "expected ray with server_config, or .*; got server_config s.toml, ray None"),
        (["--shards", "4"], "expected ray with shards, or it has no effect"),
        (["--ape-x-actors", "8"], "expected exploration ape-x with ape_x_actors, .*; got ape_x_actors 8, .* annealed"),
        (["--burn-in", "4"], "expected algorithm r2d2 with burn_in, .*; got burn_in 4, algorithm dqn"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(
    capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert re.search(message, " ".join(refusal(capsys, *flags).split()))
