"""Settings of the trainer.

In order of priority, values come from flags, REPLAY_TRAIN_* variables, a TOML file, a resumed run, presets and
defaults.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from annotated_types import MinLen
from cyclopts import App, ArgumentCollection, CycloptsError, Parameter
from cyclopts.config import Dict
from pydantic import Field, PositiveInt, TypeAdapter, model_validator
from replay_proto.access.exposure import is_loopback
from replay_proto.command_line import MAX_PORT, NONE, SPLIT, Address, Settings, given, group, read_settings
from replay_proto.steps import MAX_WINDOW

from replay_agent.atari_options import AtariOptions
from replay_agent.own_parts import NAME_PATTERN as OWN_PATTERN
from replay_agent.settings.presets import PRESETS, preset
from replay_agent.settings.whole_files import replace_text

DEFAULT_ENV: Final = "CartPole-v1"
DEFAULT_ALGORITHM: Final = "dqn"
SETTINGS_FILE = "settings.json"
# Settings of one start, which a resumed run does not inherit.
NOT_RESUMED = frozenset({"resume", "config"})
# Settings that follow from where Ray has placed a run's servers, which differs with each start.
PLACED_BY_RAY = frozenset({"server"})

# The number is limited, because each join of an actor searches all epsilons.
MAX_EPSILONS = 10_000
# A larger ratio would starve environment steps.
MAX_REPLAY_RATIO = 1e6
MAX_SHARDS = 256
# The system's timers take at least this many seconds.
MAX_STEP_TIMEOUT_S = 1e6
MAX_ENVS = 1024
# With fewer, the epsilons of Ape-X are undefined.
MIN_EXPLORERS = 2
_IS_TRUE = TypeAdapter(bool)
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,117}$"

RUN = group("run")
REPLAY = group("replay")
PACE = group("pace")
LEARNING = group("learning")
SEQUENCES = group("sequences, with --algorithm r2d2")
NETWORK = group("network")
EXPLORATION = group("exploration")
APE_X = group("Ape-X, with --exploration ape-x")
ACTING = group("acting")
ATARI = group("Atari games, ALE/*")
RAY = group("Ray")
JUDGING = group("validation and evaluation")
KEEPING = group("checkpoints and logs")


class TrainSettings(Settings):
    """Learn a Gymnasium environment by Double DQN, Rainbow or R2D2 through a prioritized replay service.

    Without --server it starts a replay server. CartPole-v1, Acrobot-v1, MountainCar-v0, LunarLander-v3, ALE/Pong-v5 and
    the environments of replay_agent.memory_tasks have presets that override the defaults below. Every flag can also be
    given as an environment variable (--batch-size as REPLAY_TRAIN_BATCH_SIZE) or in a TOML file (batch_size = 128). The
    word none unsets a value of a preset or a resumed run, as in --solved-return none. Set REPLAY_TOKEN if the server
    requires a token, and REPLAY_TLS_CA, REPLAY_TLS_CERT and REPLAY_TLS_KEY for TLS.
    """

    env: Annotated[str, RUN] = DEFAULT_ENV
    """Gymnasium environment with discrete actions; module:EnvId imports module, and module:function calls a function
    that makes an environment"""
    algorithm: Annotated[Literal["dqn", "r2d2"], RUN] = DEFAULT_ALGORITHM
    """Double DQN, whose parts have switches of their own; or R2D2, which learns from sequences with a recurrent
    network, for environments that need memory"""
    preset: Annotated[Literal["rainbow"] | None, RUN] = None
    """rainbow: all parts of Rainbow, with the hyperparameters of its paper for ALE/* (default: a preset for the
    environment, if there is one)"""
    steps: Annotated[int, RUN] = Field(200_000, ge=1)
    """environment steps to train for, over all actors"""
    seed: Annotated[int, RUN] = Field(0, ge=0)
    """seed of networks, environments, exploration and the table's draws"""
    runs_dir: Annotated[Path, RUN] = Path("runs")
    """parent directory of run directories"""
    name: Annotated[str | None, RUN] = Field(None, pattern=NAME_PATTERN)
    """name of the run and its directory (default: environment, algorithm, backend, seed and time)"""
    resume: Annotated[Path | None, RUN] = None
    """directory of a run to resume, with its settings unless overridden"""
    config: Annotated[Path | None, RUN] = None
    """TOML file with these settings"""
    device: Annotated[Literal["auto", "cpu", "cuda"], RUN] = "auto"
    """device of the networks; auto uses a GPU, if present, for images and the CPU for vectors"""
    threads: Annotated[int | None, RUN] = Field(None, ge=1)
    """CPU threads of torch in the trainer (default: 1 for vectors, torch's choice for images)"""

    server: Annotated[Address | None, REPLAY] = None
    """running replay server (default: start one)"""
    table: Annotated[str | None, REPLAY] = Field(None, pattern=NAME_PATTERN)
    """table to use (default: the run's name)"""
    keep_table: Annotated[bool | None, REPLAY] = None
    """keep the table on the server at the end (default: only if named by --table)"""
    capacity: Annotated[int, REPLAY] = Field(100_000, ge=1)
    """maximum rows in the table"""
    backend: Annotated[Literal["sum_tree", "rank", "uniform"], REPLAY] = "sum_tree"
    """how priorities determine draws"""
    alpha: Annotated[float, REPLAY] = Field(0.6, ge=0, le=1)
    """priority exponent, 0 to 1; 0 draws uniformly"""
    beta_start: Annotated[float, REPLAY] = Field(0.4, ge=0, le=1)
    """initial importance-sampling exponent; increases linearly to 1"""
    beta_steps: Annotated[int | None, REPLAY] = Field(None, ge=0)
    """environment steps until beta is 1 (default: --steps of the first start)"""
    weight_norm: Annotated[Literal["batch", "table"], REPLAY] = "batch"
    """normalize weights by the largest weight of the batch or of the table"""
    draw_mode: Annotated[Literal["stratified", "independent"], REPLAY] = "stratified"
    """how the rows of a batch are drawn"""
    prefetch: Annotated[int, REPLAY] = Field(3, ge=1)
    """batches in flight; 1 disables prefetching"""
    lockstep: Annotated[bool, REPLAY] = False
    """wait for every insert and update, so that equal seeds give equal runs; slower, excludes --actors"""
    reconnect_timeout_s: Annotated[float, REPLAY] = Field(120.0, gt=0)
    """seconds to wait for an unreachable server"""

    replay_ratio: Annotated[float, PACE] = Field(0.25, gt=0, le=MAX_REPLAY_RATIO)
    """gradient steps per environment step"""
    learning_starts: Annotated[int, PACE] = Field(2_000, ge=1)
    """rows in the table before the first gradient step"""
    lead_steps: Annotated[int, PACE] = Field(1_000, ge=1)
    """environment steps by which actors may run ahead of the replay ratio"""

    batch_size: Annotated[int, LEARNING] = Field(64, ge=1)
    """rows in a batch; with r2d2, sequences"""
    learning_rate: Annotated[float, LEARNING] = Field(5e-4, gt=0)
    """learning rate of Adam"""
    adam_epsilon: Annotated[float, LEARNING] = Field(1e-8, gt=0)
    """Adam's epsilon"""
    max_grad_norm: Annotated[float, LEARNING] = Field(10.0, gt=0)
    """gradient norm above which gradients are clipped"""
    huber_delta: Annotated[float, LEARNING] = Field(1.0, gt=0)
    """TD error, in units of return (with r2d2, rescaled), above which the loss is linear"""
    gamma: Annotated[float, LEARNING] = Field(0.99, ge=0, le=1)
    """discount factor of one environment step, 0 to 1"""
    n_step: Annotated[int, LEARNING] = Field(3, ge=1)
    """environment steps before bootstrapping"""
    clip_rewards: Annotated[bool, LEARNING] = False
    """learn from rewards clipped to [-1, 1]; reported returns are those of the environment"""
    double: Annotated[bool, LEARNING] = True
    """Double DQN: the online network selects actions, the target network evaluates them"""
    target_interval: Annotated[int, LEARNING] = Field(1, ge=1)
    """gradient steps between updates of the target network"""
    target_tau: Annotated[float, LEARNING] = Field(0.005, gt=0, le=1)
    """fraction by which an update moves the target network towards the online one; 1 copies it"""

    sequence_length: Annotated[int, SEQUENCES] = Field(20, ge=1)
    """steps of each sequence that a gradient step learns from"""
    sequence_period: Annotated[int | None, SEQUENCES] = Field(None, ge=1)
    """steps from the beginning of one sequence to the next; below --sequence-length, sequences overlap (default:
    --sequence-length)"""
    burn_in: Annotated[int, SEQUENCES] = Field(10, ge=0)
    """steps before each sequence from which the network recomputes its state"""
    eta: Annotated[float, SEQUENCES] = Field(0.9, ge=0, le=1)
    """weight of the largest TD error in the priority of a sequence, 0 to 1; the mean has the rest"""
    rescaling_epsilon: Annotated[float, SEQUENCES] = Field(1e-3, ge=0)
    """linear part of the rescaling of values, h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x"""
    feed_last: Annotated[bool, SEQUENCES] = True
    """feed the last action and its reward to the LSTM, as in the paper"""
    lstm_units: Annotated[int, SEQUENCES] = Field(64, ge=1)
    """units of the LSTM between the hidden layers and the action values"""

    network: Annotated[str | None, NETWORK] = Field(None, pattern=OWN_PATTERN)
    """a network of your own, as module:name of a function or class that makes it from a NetworkSpec"""
    learner: Annotated[str | None, LEARNING] = Field(None, pattern=OWN_PATTERN)
    """a learner of your own, as module:name of a subclass of DoubleDQN or R2D2"""
    hidden_sizes: Annotated[Annotated[tuple[PositiveInt, ...], MinLen(1)] | None, SPLIT, NETWORK] = None
    """units of each dense hidden layer, such as 256,256 (default: 128,128 for vectors, 512 for images)"""
    scale_observations: Annotated[bool, NETWORK] = False
    """scale vectors to [-1, 1] by the bounds of the observation space, where it is bounded; helps if elements differ in
    magnitude"""
    dueling: Annotated[bool, NETWORK] = False
    """dueling heads: separate value and advantages"""
    atoms: Annotated[int, NETWORK] = Field(0, ge=0)
    """atoms of the distribution of returns that C51 learns for each action, such as 51; 0 learns values instead"""
    value_min: Annotated[float, NETWORK] = -10.0
    """with --atoms, the smallest discounted return that a distribution covers"""
    value_max: Annotated[float, NETWORK] = 10.0
    """with --atoms, the largest"""
    noisy: Annotated[bool, NETWORK] = False
    """noisy dense layers, which explore; epsilon is then 0 by default"""
    noisy_sigma: Annotated[float, NETWORK] = Field(0.5, gt=0)
    """with --noisy, the initial scale of the noise"""

    exploration: Annotated[Literal["annealed", "ape-x"], EXPLORATION] = "annealed"
    """annealed: all actors share one epsilon, which decreases; ape-x: each actor has its own, which is constant"""
    epsilon_start: Annotated[float, EXPLORATION] = Field(1.0, ge=0, le=1)
    """initial probability of a random action"""
    epsilon_end: Annotated[float, EXPLORATION] = Field(0.05, ge=0, le=1)
    """final probability of a random action"""
    epsilon_steps: Annotated[int, EXPLORATION] = Field(20_000, ge=0)
    """environment steps over which epsilon decreases"""
    ape_x_epsilon: Annotated[float, APE_X] = Field(0.4, gt=0, le=1)
    """with ape-x, epsilon of the actor that explores most"""
    ape_x_alpha: Annotated[float, APE_X] = Field(7.0, ge=0)
    """with ape-x, actor i of N, from 0, has the epsilon ape_x_epsilon ** (1 + i / (N - 1) * ape_x_alpha)"""
    ape_x_actors: Annotated[int | None, APE_X] = Field(None, ge=MIN_EXPLORERS, le=MAX_EPSILONS)
    """with ape-x, the number N of actors, if some are on other machines (default: those that the trainer starts)"""

    actors: Annotated[int, ACTING] = Field(0, ge=0)
    """actor processes to start on this machine"""
    act: Annotated[bool | None, ACTING] = None
    """let the trainer act itself (default: only without --actors)"""
    actor_priorities: Annotated[bool | None, ACTING] = None
    """actors compute the priorities of new rows; otherwise, new rows get the largest priority in the table (default:
    with --exploration ape-x, except with r2d2 or --atoms)"""
    envs_per_actor: Annotated[int, ACTING] = Field(1, ge=1, le=MAX_ENVS)
    """environments of each actor; the network computes the actions of all of them together"""
    publish_interval: Annotated[int, ACTING] = Field(50, ge=1)
    """gradient steps between published versions of the weights"""
    check_steps: Annotated[int, ACTING] = Field(50, ge=1)
    """environment steps of an actor between two checks for newer weights"""
    step_timeout_s: Annotated[float, ACTING] = Field(600.0, gt=0, le=MAX_STEP_TIMEOUT_S)
    """seconds after which a step or a reset of an environment counts as hanging"""

    sticky_actions: Annotated[float, ATARI] = Field(0.25, ge=0, lt=1)
    """probability that the emulator repeats the last action in a frame"""
    noop_max: Annotated[int, ATARI] = Field(0, ge=0)
    """maximum number of random frames without an action at the beginning of a game"""
    episodic_life: Annotated[bool, ATARI] = False
    """end an episode, and begin a new game, when a life is lost, except in validations and evaluations"""

    ray: Annotated[str | None, RAY] = None
    """run servers, actors and the learner as actors of the Ray cluster at this address; auto: the running one or, if
    there is none, Ray on this machine"""
    shards: Annotated[int, RAY] = Field(3, ge=1, le=MAX_SHARDS)
    """with ray, number of replay servers over which the table is distributed"""
    ray_data_dir: Annotated[Path | None, RAY] = None
    """with ray, directory of the servers' tables on their nodes (default: the run's directory; all nodes share it)"""
    server_config: Annotated[Path | None, RAY] = None
    """with ray, TOML file of settings for the replay servers, readable on all nodes"""
    actor_cpus: Annotated[float, RAY] = Field(1.0, ge=0)
    """with ray, CPUs that each actor reserves"""
    lost_after_s: Annotated[float, RAY] = Field(60.0, gt=0)
    """with ray, seconds after which a server that is away is given up, with its rows"""
    placement_timeout_s: Annotated[float, RAY] = Field(60.0, gt=0)
    """with ray, seconds to wait for free resources"""

    validate_interval: Annotated[int, JUDGING] = Field(5_000, ge=1)
    """environment steps between greedy validations"""
    validation_share: Annotated[float, JUDGING] = Field(1.0, gt=0, le=1)
    """largest share of the time that validations may take; later ones are postponed"""
    validation_episodes: Annotated[int, JUDGING] = Field(20, ge=1)
    """episodes of a validation, also for the best network so far"""
    confirm_episodes: Annotated[int, JUDGING] = Field(100, ge=1)
    """episodes, including those of the validation, over which a network must match the best so far"""
    solved_return: Annotated[float | None, JUDGING] = None
    """mean return over the confirming episodes at which training ends (default: never)"""
    evaluation_episodes: Annotated[int, JUDGING] = Field(100, ge=0)
    """final greedy episodes with the best network, on new seeds"""
    evaluation_epsilon: Annotated[float, JUDGING] = Field(0.0, ge=0, le=1)
    """probability of a random action in validations and in the final evaluation"""

    checkpoint_interval_s: Annotated[float, KEEPING] = Field(60.0, gt=0)
    """seconds between checkpoints"""
    keep_checkpoints: Annotated[int, KEEPING] = Field(2, ge=1)
    """checkpoints to keep"""
    log_interval_s: Annotated[float, KEEPING] = Field(1.0, gt=0)
    """seconds between points in TensorBoard"""
    replay_checkpoints: Annotated[bool, KEEPING] = False
    """checkpoint the table on the server with each checkpoint of the trainer; needs a --server with --checkpoint-dir"""
    tensorboard: Annotated[bool, KEEPING] = True
    """write TensorBoard logs"""
    progress: Annotated[bool, KEEPING] = True
    """show a progress bar, or periodic log lines without a terminal"""
    http_port: Annotated[int | None, KEEPING] = Field(None, ge=0, le=MAX_PORT)
    """port for metrics of the run over HTTP; 0 picks a free one; default: none"""
    http_host: Annotated[str, KEEPING] = "127.0.0.1"
    """address for HTTP; other machines can reach it only with http_insecure"""
    http_insecure: Annotated[bool, KEEPING] = False
    """let other machines read the metrics, without tokens or TLS; for trusted networks"""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], KEEPING] = "info"
    """minimum severity of log messages"""

    @model_validator(mode="before")
    @classmethod
    def _add_preset(cls, values: Any) -> Any:
        """Fill in missing settings from the preset of the environment and the algorithm."""
        named, algorithm = values.get("preset"), values.get("algorithm", DEFAULT_ALGORITHM)
        name = named if named in PRESETS else algorithm
        known = {**preset(values.get("env", DEFAULT_ENV), name), **values}
        if _IS_TRUE.validate_python(known.get("noisy", False)):  # the network explores
            known |= {epsilon: values.get(epsilon, 0.0) for epsilon in ("epsilon_start", "epsilon_end")}
        return known

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Refuse settings that contradict each other, or under which no gradient step could ever be taken."""
        require, is_recurrent = self._require, self.algorithm == "r2d2"
        if self.atoms:
            is_range = self.atoms > 1 and self.value_min < self.value_max
            require(is_range, "atoms of 2 or more, and value_min below value_max", "atoms value_min value_max")
            expected = "no actor_priorities with atoms, because priorities are KL divergences"
            require(not self.actor_priorities, expected, "atoms actor_priorities")
        if self.atoms or self.noisy:
            is_usual = not is_recurrent and self.network is None
            expected = "algorithm dqn and no network of your own with atoms or noisy"
            require(is_usual, expected, "algorithm network atoms noisy")
        require(
            not (self.lockstep and self.actors), "no actors with lockstep: the trainer acts alone", "lockstep actors"
        )
        require(self.ray is None or self.server is None, "ray or server, because ray starts servers", "ray server")
        self._require_use(self.ray is not None, "ray", RAY)
        self._require_use(is_recurrent, "algorithm r2d2", SEQUENCES)
        self._require_use(self.exploration == "ape-x", "exploration ape-x", APE_X)
        require(
            self.http_port is None or self.http_insecure or is_loopback(self.http_host),
            "http_host on this machine or, on a trusted network, http_insecure, because anyone could read the metrics",
            "http_host http_insecure",
        )
        require(
            self.exploration != "ape-x" or self.explorers >= MIN_EXPLORERS,
            f"{MIN_EXPLORERS} or more actors with exploration ape-x, in ape_x_actors if they join from other machines",
            "actors ape_x_actors",
        )
        if is_recurrent:
            self._require_sequences()
        require(
            self.learning_starts <= self.capacity,
            "learning_starts of at most capacity, which bounds the rows of the table",
            "learning_starts capacity",
        )
        require(
            not self.acts or self.n_step <= self.learning_starts,
            "n_step of at most learning_starts, or learning waits for a first row that never completes",
            "n_step learning_starts",
        )
        require(
            (self.steps - self.learning_starts + 1) * self.replay_ratio >= 1,
            "(steps - learning_starts + 1) * replay_ratio of 1 or more, for one gradient step at least",
            "steps learning_starts replay_ratio",
        )
        return self

    def _require_sequences(self) -> None:
        require = self._require
        require(self.network is None, "algorithm dqn with a network of your own", "algorithm network")
        require(not self.actor_priorities, "algorithm dqn with actor_priorities", "algorithm actor_priorities")
        require(not self.clip_rewards, "no clip_rewards with algorithm r2d2, which rescales values", "clip_rewards")
        require(
            self.sequence_period is None or self.sequence_period <= self.sequence_length,
            "sequence_period of at most sequence_length, or steps between sequences are never learned",
            "sequence_period sequence_length",
        )
        require(
            self.burn_in + self.sequence_length + self.n_step < MAX_WINDOW,
            f"burn_in + sequence_length + n_step below {MAX_WINDOW}",
            "burn_in sequence_length n_step",
        )
        require(
            self.sequence_length + self.n_step < self.learning_starts,
            "sequence_length + n_step below learning_starts, or learning waits for a first sequence",
            "sequence_length n_step learning_starts",
        )

    def _require_use(self, holds: bool, needed: str, group: Parameter) -> None:
        """Refuse settings of a group that have no effect, because another setting is missing."""
        for name, field in type(self).model_fields.items():
            if group in field.metadata and vars(self)[name] != field.default:
                self._require(holds, f"{needed} with {name}, or it has no effect", f"{name} {needed.split()[0]}")

    def _require(self, holds: bool, expected: str, names: str) -> None:
        """Raise an error about the settings ``names``, separated by spaces, unless a condition holds."""
        if not holds:
            raise ValueError(
                f"expected {expected}; got {', '.join(f'{name} {vars(self)[name]}' for name in names.split())}"
            )

    @property
    def atari(self) -> AtariOptions:
        """How Atari games are played."""
        return AtariOptions(self.sticky_actions, self.noop_max, self.episodic_life)

    @property
    def acts(self) -> bool:
        """Whether the trainer itself acts in the environment."""
        return self.actors == 0 if self.act is None else self.act

    @property
    def admits_actors(self) -> bool:
        """Whether actors other than the trainer may act: those that it starts, and those that know its server."""
        return self.actors > 0 or self.server is not None

    @property
    def explorers(self) -> int:
        """Number of actors that have an epsilon of their own if exploration is ape-x."""
        return self.ape_x_actors or self.actors + self.acts

    @property
    def actors_estimate(self) -> bool:
        """Whether actors estimate the values of their steps, for the priorities of new rows."""
        if self.actor_priorities is None:
            return self.exploration == "ape-x" and self.algorithm != "r2d2" and not self.atoms
        return self.actor_priorities

    @property
    def drops_table(self) -> bool:
        """Whether the table is dropped when training is done."""
        return self.table is None if self.keep_table is None else not self.keep_table

    @property
    def annealing_steps(self) -> int:
        """Environment steps until beta is 1."""
        return self.steps if self.beta_steps is None else self.beta_steps

    def save(self, path: Path) -> None:
        """Save the settings, so that the run can be resumed.

        The default of ``beta_steps`` is saved as a number: if the run is resumed with more steps, beta does not fall.
        """
        left_out = NOT_RESUMED if self.ray is None else NOT_RESUMED | PLACED_BY_RAY
        saved = self.model_copy(update={"beta_steps": self.annealing_steps})
        replace_text(path, saved.model_dump_json(indent=2, exclude=set(left_out)) + "\n")


def saved_settings(run: Path) -> dict[str, Any]:
    """Return the settings that `TrainSettings.save` has saved for a run, by name.

    Raises:
        ValueError: there are none, or they are corrupt.
    """
    path = run / SETTINGS_FILE
    if not path.is_file():
        raise ValueError(f"expected the directory of a run, but {path} does not exist")
    try:
        values = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"expected the settings of a run in {path}, got no JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"expected the settings of a run in {path}, got {values!r}")
    return values


def _resumed_run(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Add the settings of the resumed run, if any."""
    run = given(arguments, "resume")
    if run is None:
        return
    try:
        saved = saved_settings(Path(run))
    except ValueError as error:
        raise CycloptsError(msg=f"--resume: {error}") from None
    # None is kept, too: the user chose it, so a preset must not replace it.
    values = {name: NONE if value is None else value for name, value in saved.items()}
    Dict(values, source=str(Path(run) / SETTINGS_FILE))(app, commands, arguments)


def load_train_settings(arguments: Sequence[str] | None = None) -> TrainSettings:
    """Read the trainer's settings; see `read_settings`."""
    return read_settings(TrainSettings, "replay-train", "REPLAY_TRAIN_", arguments, _resumed_run)
