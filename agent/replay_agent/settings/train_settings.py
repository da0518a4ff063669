"""Settings of the trainer: flags, then REPLAY_TRAIN_* variables, a TOML file, a resumed run, presets, defaults."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from replay_agent.settings.command_line import MAX_PORT, CommandSettings, check_address, load, option, split_list
from replay_agent.settings.presets import PRESETS

ENV_PREFIX = "REPLAY_TRAIN_"
DEFAULT_ENV = "CartPole-v1"
SETTINGS_FILE = "settings.json"
# Settings of one start, which a resumed run does not inherit.
NOT_RESUMED = frozenset({"resume", "config"})

# A larger ratio would starve environment steps.
MAX_REPLAY_RATIO = 1e6
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"

RUN = "run"
REPLAY = "replay"
PACE = "pace"
LEARNING = "learning"
NETWORK = "network"
EXPLORATION = "exploration"
ACTING = "acting"
JUDGING = "validation and evaluation"
KEEPING = "checkpoints and logs"


class TrainSettings(CommandSettings):
    """Learn a Gymnasium environment by Double DQN through a prioritized replay service.

    Without --server it starts a replay server of its own. CartPole-v1, Acrobot-v1 and MountainCar-v0 have tuned
    presets that override the defaults below. Every flag can also be given as an environment variable (--batch-size as
    REPLAY_TRAIN_BATCH_SIZE) or in a TOML file (batch_size = 128). The word none unsets a value of a preset or a resumed
    run, as in --solved-return none. REPLAY_TOKEN holds the server's token; REPLAY_TLS_CA, REPLAY_TLS_CERT and
    REPLAY_TLS_KEY name the TLS files.
    """

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, cli_prog_name="replay-train")

    env: str = option(DEFAULT_ENV, RUN, "Gymnasium environment with discrete actions; module:EnvId imports module")
    steps: int = option(200_000, RUN, "environment steps to train for, over all actors", ge=1)
    seed: int = option(0, RUN, "seed of networks, environments, exploration and the table's draws", ge=0)
    runs_dir: Path = option(Path("runs"), RUN, "parent directory of run directories")
    name: str | None = option(
        None,
        RUN,
        "name of the run and its directory (default: environment, backend, seed and time)",
        pattern=NAME_PATTERN,
    )
    resume: Path | None = option(None, RUN, "directory of a run to resume, with its settings unless overridden")
    config: Path | None = option(None, RUN, "TOML file with these settings")
    device: Literal["auto", "cpu", "cuda"] = option(
        "auto", RUN, "device of the networks; auto uses a GPU, if present, for images and the CPU for vectors"
    )
    threads: int | None = option(
        None,
        RUN,
        "CPU threads of torch in the trainer (default: 1 for vectors, torch's choice for images)",
        ge=1,
    )

    server: str | None = option(None, REPLAY, "running replay server (default: start one)", "HOST:PORT")
    table: str | None = option(None, REPLAY, "table to use (default: the run's name)", pattern=NAME_PATTERN)
    keep_table: bool | None = option(
        None, REPLAY, "keep the table on the server at the end (default: only if named by --table)"
    )
    capacity: int = option(100_000, REPLAY, "maximum rows in the table", ge=1)
    backend: Literal["sum_tree", "rank", "uniform"] = option("sum_tree", REPLAY, "how priorities determine draws")
    alpha: float = option(0.6, REPLAY, "priority exponent, 0 to 1; 0 draws uniformly", ge=0, le=1)
    beta_start: float = option(0.4, REPLAY, "initial importance-sampling exponent; increases linearly to 1", ge=0, le=1)
    beta_steps: int | None = option(None, REPLAY, "environment steps until beta is 1 (default: --steps)", ge=0)
    weight_norm: Literal["batch", "table"] = option(
        "batch", REPLAY, "normalize weights by the largest weight of the batch or of the table"
    )
    draw_mode: Literal["stratified", "independent"] = option("stratified", REPLAY, "how the rows of a batch are drawn")
    prefetch: int = option(3, REPLAY, "batches in flight; 1 disables prefetching", ge=1)
    lockstep: bool = option(
        False,
        REPLAY,
        "wait for every insert and update, so that equal seeds give equal runs; slower, excludes --actors",
    )
    reconnect_timeout_s: float = option(120.0, REPLAY, "seconds to wait for an unreachable server", gt=0)

    replay_ratio: float = option(0.25, PACE, "gradient steps per environment step", gt=0, le=MAX_REPLAY_RATIO)
    learning_starts: int = option(2_000, PACE, "rows in the table before the first gradient step", ge=1)
    lead_steps: int = option(1_000, PACE, "environment steps by which actors may run ahead of the replay ratio", ge=1)

    batch_size: int = option(64, LEARNING, "rows in a batch", ge=1)
    learning_rate: float = option(5e-4, LEARNING, "learning rate of Adam", gt=0)
    adam_epsilon: float = option(1e-8, LEARNING, "Adam's epsilon", gt=0)
    max_grad_norm: float = option(10.0, LEARNING, "gradient norm above which gradients are clipped", gt=0)
    huber_delta: float = option(1.0, LEARNING, "TD error, in units of return, above which the loss is linear", gt=0)
    gamma: float = option(0.99, LEARNING, "discount factor of one environment step, 0 to 1", ge=0, le=1)
    n_step: int = option(3, LEARNING, "environment steps before bootstrapping", ge=1)
    double: bool = option(
        True, LEARNING, "Double DQN: the online network selects actions, the target network evaluates them"
    )
    target_interval: int = option(1, LEARNING, "gradient steps between updates of the target network", ge=1)
    target_tau: float = option(
        0.005,
        LEARNING,
        "fraction by which an update moves the target network towards the online one; 1 copies it",
        gt=0,
        le=1,
    )

    hidden_sizes: tuple[int, ...] | None = option(
        None,
        NETWORK,
        "units of each dense hidden layer, such as 256,256 (default: 128,128 for vectors, 512 for images)",
    )
    scale_observations: bool = option(
        False,
        NETWORK,
        "scale vectors to [-1, 1] by the bounds of the observation space, where it is bounded; "
        "helps if elements differ in magnitude",
    )
    dueling: bool = option(False, NETWORK, "dueling heads: separate value and advantages")

    epsilon_start: float = option(1.0, EXPLORATION, "initial probability of a random action", ge=0, le=1)
    epsilon_end: float = option(0.05, EXPLORATION, "final probability of a random action", ge=0, le=1)
    epsilon_steps: int = option(20_000, EXPLORATION, "environment steps over which epsilon decreases", ge=0)

    actors: int = option(0, ACTING, "actor processes to start on this machine", ge=0)
    act: bool | None = option(None, ACTING, "let the trainer act itself (default: only without --actors)")
    learner_host: str = option("127.0.0.1", ACTING, "address to listen on for actors; 0.0.0.0 admits other machines")
    learner_port: int = option(0, ACTING, "port to listen on for actors; 0 picks a free one", ge=0, le=MAX_PORT)
    learner_tls_cert: Path | None = option(None, ACTING, "TLS certificate for actors, PEM")
    learner_tls_key: Path | None = option(None, ACTING, "private key of the certificate, PEM, unencrypted")
    learner_tls_client_ca: Path | None = option(
        None, ACTING, "CA that must have signed actors' certificates, PEM; actors need none if absent"
    )
    learner_tokens: Path | None = option(
        None, ACTING, "TOML file of tokens, in the server's format; actors need the right to write to the run's table"
    )
    learner_insecure: bool = option(
        False,
        ACTING,
        "accept actors from other machines without tokens or client certificates; for trusted networks",
    )
    publish_interval: int = option(50, ACTING, "gradient steps between published versions of the weights", ge=1)
    grant_steps: int = option(50, ACTING, "environment steps of an actor between two reports", ge=1)

    validate_interval: int = option(5_000, JUDGING, "environment steps between greedy validations", ge=1)
    validation_episodes: int = option(20, JUDGING, "episodes of a validation, also for the best network so far", ge=1)
    confirm_episodes: int = option(
        100,
        JUDGING,
        "episodes, including those of the validation, over which a network must match the best so far",
        ge=1,
    )
    solved_return: float | None = option(
        None, JUDGING, "mean return over the confirming episodes at which training ends (default: never)"
    )
    evaluation_episodes: int = option(100, JUDGING, "final greedy episodes with the best network, on new seeds", ge=0)

    checkpoint_interval_s: float = option(60.0, KEEPING, "seconds between checkpoints", gt=0)
    keep_checkpoints: int = option(2, KEEPING, "checkpoints to keep", ge=1)
    log_interval_s: float = option(1.0, KEEPING, "seconds between points in TensorBoard", gt=0)
    replay_checkpoints: bool = option(
        False,
        KEEPING,
        "checkpoint the table on the server with each checkpoint of the trainer; "
        "needs a --server with --checkpoint-dir",
    )
    tensorboard: bool = option(True, KEEPING, "write TensorBoard logs")
    progress: bool = option(True, KEEPING, "show a progress bar, or periodic log lines without a terminal")
    log_level: Literal["debug", "info", "warning", "error"] = option(
        "info", KEEPING, "minimum severity of log messages"
    )

    @field_validator("hidden_sizes", mode="before")
    @classmethod
    def _split_sizes(cls, value: Any) -> Any:
        return split_list(value)

    @field_validator("server")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        return check_address(value)

    @field_validator("hidden_sizes")
    @classmethod
    def _are_sizes(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and (not value or min(value) < 1):
            raise ValueError(f"expected one or more positive numbers, such as 128,128, got {value}")
        return value

    @model_validator(mode="after")
    def _lockstep_is_alone(self) -> Self:
        if self.lockstep and self.actors:
            raise ValueError(
                f"lockstep needs the trainer to act alone, but actors is {self.actors}; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _gets_to_learn(self) -> Self:
        """Refuse settings under which no gradient step could ever be taken."""
        if self.learning_starts > self.capacity:
            raise ValueError(
                f"expected learning_starts of at most capacity, which bounds the rows of the table; "
                f"got learning_starts {self.learning_starts}, capacity {self.capacity}"
            )
        if self.acts and self.n_step > self.learning_starts:
            raise ValueError(
                "expected n_step of at most learning_starts, or learning waits for a first row that never completes; "
                f"got n_step {self.n_step}, learning_starts {self.learning_starts}"
            )
        steps_with_credit = self.steps - self.learning_starts + 1
        if steps_with_credit * self.replay_ratio < 1:
            raise ValueError(
                "expected (steps - learning_starts + 1) * replay_ratio of 1 or more, for one gradient step at least; "
                f"got steps {self.steps}, learning_starts {self.learning_starts}, replay_ratio {self.replay_ratio:g}"
            )
        return self

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.learner_tls_cert is None) != (self.learner_tls_key is None):
            raise ValueError("expected learner_tls_cert and learner_tls_key together, got one of them")
        if self.learner_tls_client_ca is not None and self.learner_tls_cert is None:
            raise ValueError("expected learner_tls_cert and learner_tls_key with learner_tls_client_ca")
        return self

    @classmethod
    def later_sources(cls, settings_cls: type[BaseSettings]) -> tuple[PydanticBaseSettingsSource, ...]:
        """The run that is resumed, then the preset of the environment."""
        return _ResumedRun(settings_cls), _Preset(settings_cls)

    @property
    def acts(self) -> bool:
        """Whether the trainer acts itself."""
        return self.actors == 0 if self.act is None else self.act

    @property
    def drops_table(self) -> bool:
        """Whether the table is dropped when training is done."""
        return self.table is None if self.keep_table is None else not self.keep_table

    def save(self, path: Path) -> None:
        """Write them for a later `resume`."""
        path.write_text(self.model_dump_json(indent=2, exclude=set(NOT_RESUMED)) + "\n")


class _LaterSource(PydanticBaseSettingsSource):
    """A source that depends on the values of earlier sources."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Unused: all values come at once."""
        return None, field_name, False


class _ResumedRun(_LaterSource):
    """The settings of the run that is resumed."""

    def __call__(self) -> dict[str, Any]:
        run_dir = self.current_state.get("resume")
        if run_dir is None:
            return {}
        path = Path(run_dir) / SETTINGS_FILE
        if not path.is_file():
            raise ValueError(f"resume: expected the directory of a run, but {path} does not exist")
        values: dict[str, Any] = json.loads(path.read_text())
        # None is kept, too: the user chose it, so a preset must not replace it.
        return values


class _Preset(_LaterSource):
    """The tuned settings of the environment, if there are any."""

    def __call__(self) -> dict[str, Any]:
        return dict(PRESETS.get(str(self.current_state.get("env", DEFAULT_ENV)), {}))


def load_train_settings(arguments: Sequence[str]) -> TrainSettings:
    """Read the trainer's settings; see `command_line.load`."""
    return load(TrainSettings, arguments)
