"""The training loop: acts, learns at the replay ratio, validates, saves checkpoints and supervises actors."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from enum import StrEnum
from functools import partial

import torch
from replay_client import InvalidArgumentError, ReplayClient
from replay_client.torch import TensorBatch

from replay_agent.acting.actor import Actor, FinishedEpisode, ape_x_epsilons
from replay_agent.acting.environments import EnvironmentInfo, make_environment
from replay_agent.acting.evaluation import EvaluationResult, EvaluationStoppedError, evaluate
from replay_agent.acting.seeds import RunSeeds
from replay_agent.algorithms import algorithm_of, make_learner
from replay_agent.distributed.actor_guide import MAX_WAITING, ActorGuide, Guidance
from replay_agent.distributed.run_tables import ActorTask, table_number
from replay_agent.dqn.divergence import require_finite, require_finite_figures, require_return
from replay_agent.dqn.networks import ActingNetwork
from replay_agent.processes.actor_pool import Pool
from replay_agent.processes.signals import StopRequest
from replay_agent.replay.pacing import Pacer
from replay_agent.replay.run_table import TABLE_LOST, RunTable
from replay_agent.reporting.curve import History
from replay_agent.reporting.progress import ProgressView, RateMeter, Status
from replay_agent.reporting.tensorboard import MetricsLog
from replay_agent.settings.train_settings import TrainSettings
from replay_agent.training.checkpoint import checkpoints, load_latest, save_checkpoint
from replay_agent.training.run_directory import RunDirectory
from replay_agent.training.schedules import Interval, LinearSchedule
from replay_agent.training.selection import NetworkSelector

log = logging.getLogger(__name__)

# Interval between polls of the table while the learner waits for rows.
ROWS_WAIT_S = 0.02
SUPERVISE_INTERVAL_S = 0.25
SHOW_INTERVAL_S = 0.2
# Log a warning after this long without rows from actors.
SILENCE_S = 30.0
# At most this many episodes are recorded per turn, so that busy actors do not delay learning. Recording an episode
# takes up to 0.1 ms, mostly in TensorBoard.
EPISODES_PER_TURN = 16
MISSED_INTERVAL_S = 10.0


class Ending(StrEnum):
    """Why training ended."""

    SOLVED = "solved"
    STEPS_DONE = "all steps taken"
    STOPPED = "stopped"


class TrainingLoop:
    """The state and training loop of one run."""

    def __init__(
        self,
        settings: TrainSettings,
        run: RunDirectory,
        env: EnvironmentInfo,
        client: ReplayClient,
        stop: StopRequest,
        metrics: MetricsLog,
        device: torch.device,
        reconnect_timeout_s: float,
        guide_client: ReplayClient | None = None,
    ) -> None:
        """Build the networks and create the table.

        The table's streams wait up to ``reconnect_timeout_s`` seconds for rows, and for an unreachable server. With
        ``guide_client``, which has the time limit `run_tables.CALL_S`, other actors may join. The errors are those of
        `make_learner` and `RunTable.open`.
        """
        self._settings = settings
        self.run = run
        self._env = env
        self._stop = stop
        self._metrics = metrics
        self._device = device
        self._seeds = RunSeeds(settings.seed, run.earlier_starts)
        torch.manual_seed(self._seeds.network)
        self.learner = make_learner(settings, env, device)
        self._batch_of = algorithm_of(settings).batch_of
        self.pacer = Pacer(settings.replay_ratio, settings.learning_starts, settings.lead_steps)
        self.history = History()
        self.selector = self._make_selector()
        self.training_s = 0.0
        self._epsilon, actor_epsilons = _exploration(settings)
        task = self._make_task(actor_epsilons)
        self._beta = LinearSchedule(settings.beta_start, 1.0, settings.annealing_steps)
        self._next_validation = settings.validate_interval
        self._started_at, self._validated_s = time.monotonic(), 0.0
        self._is_solved = False
        self._actor = task.make_actor(0, self.learner.online, device) if settings.acts else None
        self.table = RunTable(
            client,
            env,
            settings,
            self.pacer,
            name=task.table,
            seed=self._seeds.draws,
            timeout_s=reconnect_timeout_s,
            device=device,
        )
        self.table.open()
        self.guide = None if guide_client is None else self._start_guide(guide_client, task)
        self._shown = _Shown()
        self._due = _Due(settings)

    def resume(self) -> None:
        """Resume from the newest checkpoint of the run. The errors are those of `load_latest`."""
        checkpoint = load_latest(self.run.checkpoints, self.learner)
        state = checkpoint.state
        self.pacer.restart(state["env_steps"], state["credit"])
        # Others may have inserted rows into a table named by --table.
        if not self.table.find_again(state["table"], is_shared=self._settings.table is not None):
            log.warning("the run's table is gone: learning resumes at %d rows", self._settings.learning_starts)
        self.history = History(**state["history"])
        self.selector.restore(state["selection"], checkpoint.best_weights)
        self.training_s = state["training_s"]
        self._next_validation = state["next_validation"]
        self._publish()
        log.info("resumed at environment step %d", self.pacer.env_steps)
        if state.get("replay_checkpoint") is not None:
            log.info("the table at that step: replay-server --restore .../%s", state["replay_checkpoint"])

    def train(self, progress: ProgressView, pool: Pool | None) -> Ending:
        """Train until the environment is solved, all steps are taken, or a stop is requested.

        The errors are those of the table, of the module `divergence`, and of `Pool.supervise`.
        """
        if not checkpoints(self.run.checkpoints):
            self.save()  # so that every run can be resumed
        start, before_s = time.monotonic(), self.training_s
        try:
            while (ending := self._ending()) is None:
                self._turn(progress, pool)
                self.training_s = before_s + time.monotonic() - start
            self._take_episodes(MAX_WAITING)
            judged_at = self.history.validation_steps[-1:]
            if ending is Ending.STEPS_DONE and self.learner.updates and judged_at != [self.pacer.env_steps]:
                self._validate(progress)  # the last network
        except EvaluationStoppedError:
            ending = Ending.STOPPED
        self.training_s = before_s + time.monotonic() - start
        progress.show(self.status())
        return ending

    def save(self) -> None:
        """Write a checkpoint with the name of the matching replay checkpoint, if any; see `save_checkpoint`."""
        require_finite(self.learner)
        self.table.flush()  # The table must contain every step that the checkpoint counts.
        keep = self._settings.keep_checkpoints
        replay_checkpoint = None
        if self._settings.replay_checkpoints and self.pacer.env_steps:
            # Keep one more than the trainer keeps of its own, because it may be killed before it writes its next one.
            replay_checkpoint = self.table.checkpoint(keep + 1, self._settings.reconnect_timeout_s)
        state = {
            "replay_checkpoint": replay_checkpoint,
            "env_steps": self.pacer.env_steps,
            "credit": self.pacer.credit,
            "table": self.table.to_json(),
            "selection": self.selector.to_json(),
            "history": vars(self.history),
            "training_s": self.training_s,
            "next_validation": self._next_validation,
        }
        best = self.selector.best_weights
        save_checkpoint(self.run.checkpoints, self.pacer.env_steps, self.learner, state, best, keep)

    def evaluate_best(self) -> EvaluationResult:
        """Play greedy episodes on new seeds with the best network, or with the current one if none was validated.

        Raises:
            EvaluationStoppedError: a stop was requested.
            DivergedError: see `require_return`.
        """
        network = self.learner.online
        if self.selector.best_weights is not None:
            network.load_state_dict(self.selector.best_weights)
        return self._evaluate(network, self._seeds.evaluation(self._settings.evaluation_episodes))

    def end(self) -> None:
        """Stop guiding actors, and tell them if the run is over. Idempotent."""
        if self.guide is not None:
            self.guide.end(is_over=self._ending() in (Ending.SOLVED, Ending.STEPS_DONE))

    def drop_tables(self) -> None:
        """Remove the run's tables from the server, after `end`. The table of steps stays if the settings say so."""
        if self.guide is not None:
            self.guide.drop()
        if self._settings.drops_table:
            try:
                self.table.drop()
            except TABLE_LOST:
                log.info("the table was already dropped")

    def close(self) -> None:
        """Stop guiding actors, flush the table, and close the environment."""
        self.end()
        self.table.close()
        if self._actor is not None:
            self._actor.close()

    def status(self) -> Status:
        """Return the status of the run; waits for the device, and checks the figures of the gradient steps."""
        step, shown, figures = self.pacer.env_steps, self._shown, self.learner.figures.fetch()
        require_finite_figures(self.learner, figures)
        rows = f"{self.pacer.table_count.size:,} of {self._settings.learning_starts:,} rows"
        return Status(
            env_steps=step,
            updates=self.learner.updates,
            recent_return=self.history.recent_return,
            best_mean=self.selector.best_mean,
            loss=figures.loss if figures else None,
            grad_norm=figures.grad_norm if figures else None,
            mean_value=figures.mean_value if figures else None,
            epsilon=self._epsilon(step) if self._settings.exploration == "annealed" else None,
            beta=self._beta(step),
            steps_per_s=shown.step_rate.per_second(step),
            updates_per_s=shown.update_rate.per_second(self.learner.updates),
            batch_wait_s=shown.batch_wait_s,
            note=shown.note or ("" if self.pacer.has_rows else f"filling the table: {rows}"),
        )

    def _ending(self) -> Ending | None:
        if self._stop.is_set():
            return Ending.STOPPED
        if self._is_solved:
            return Ending.SOLVED
        return Ending.STEPS_DONE if self.pacer.env_steps >= self._settings.steps else None

    def _turn(self, progress: ProgressView, pool: Pool | None) -> None:
        """Take the environment and gradient steps that are due, or wait for rows. Then do periodic tasks."""
        try:
            self.table.open()
            if self._actor is not None and not self.pacer.owes_update:
                self._act(self._actor)
            if self.pacer.has_rows and not self.pacer.can_draw:
                self.pacer.can_draw = self.table.can_draw()
            if self.pacer.owes_update:
                self._learn()
            elif self._actor is None:
                self._wait_for_rows()
        except TABLE_LOST as error:
            self.table.lose(error)
        except InvalidArgumentError:
            # The server may refuse non-finite priorities before the figures are checked.
            require_finite(self.learner)
            raise
        self._take_episodes(EPISODES_PER_TURN)
        self._do_what_is_due(progress, pool)

    def _act(self, actor: Actor) -> None:
        """Take a step in each environment, and insert them."""
        taken = actor.step(self._epsilon(self.pacer.env_steps))
        self.pacer.count_own_steps(len(taken))
        self.table.record(taken)
        for each in taken:
            if each.episode is not None:
                self._note_episode(each.episode)

    def _learn(self) -> None:
        """Take one gradient step and write the new priorities back, without waiting for the device."""
        began = time.monotonic()
        batch = self.table.next_batch(self._beta(self.pacer.env_steps))
        self._shown.batch_wait_s += time.monotonic() - began
        self.pacer.observe_inserted(batch.inserted)
        result = self.learner.update(self._batch_of(batch))
        self.pacer.count_update()
        self.table.write_back(batch, result.priorities)
        if self.learner.updates % self._settings.publish_interval == 0:
            self._publish()
        self._shown.batch = batch

    def _wait_for_rows(self) -> None:
        """Poll the table to count the actors' steps; sleep briefly if no gradient step is due."""
        before = self.pacer.env_steps
        self.pacer.observe_inserted(self.table.open().describe().inserted)
        if self.pacer.env_steps > before:
            self._shown.note = ""
            self._due.silence.restart()
        if not self.pacer.owes_update:
            self._stop.wait(ROWS_WAIT_S)
        if self._due.silence.is_due():
            self._shown.note = "waiting for actors"
            log.warning("no new rows for %.0f s: waiting for actors to join, or to come back", SILENCE_S)

    def _take_episodes(self, limit: int) -> None:
        """Record up to ``limit`` episodes of actors, and log how many were missed."""
        if self.guide is None:
            return
        # An episode has at least one step, so there cannot be more episodes than steps. This limits fabricated reports.
        possible = self.pacer.env_steps - len(self.history.episode_steps)
        for episode in self.guide.take_episodes(max(0, min(limit, possible))):
            self._note_episode(episode)
        if self.guide.missed > self._shown.missed and self._due.missed.is_due():
            log.warning(
                "%d episodes of actors are missing in the learning curve: too many were reported at once, or their "
                "returns or lengths are impossible (%d in total)",
                self.guide.missed - self._shown.missed,
                self.guide.missed,
            )
            self._shown.missed = self.guide.missed

    def _note_episode(self, episode: FinishedEpisode) -> None:
        require_return(episode.episode_return, "a training episode")
        self.pacer.count_closing_row()
        self.history.add_episode(self.pacer.env_steps, episode.episode_return)
        self._metrics.episode(self.pacer.env_steps, episode)

    def _do_what_is_due(self, progress: ProgressView, pool: Pool | None) -> None:
        if self.pacer.env_steps >= self._next_validation and self.learner.updates and self._may_validate:
            self._validate(progress)
        shows, logs = self._due.show.is_due(), self._due.log.is_due()
        if shows or logs:
            status = self.status()
        if shows:
            progress.show(status)
        if logs:
            self._metrics.status(status, self._shown.batch)
        if self._due.checkpoint.is_due():
            self.save()
        if pool is not None and self._due.supervision.is_due():
            pool.supervise()

    @property
    def _may_validate(self) -> bool:
        """Whether validations have taken less than their share of the time since this start of the run.

        In lockstep, they always may, because equal seeds must give equal runs.
        """
        running_s = time.monotonic() - self._started_at
        return self._settings.lockstep or self._validated_s <= self._settings.validation_share * running_s

    def _validate(self, progress: ProgressView) -> None:
        require_finite(self.learner)
        step, began = self.pacer.env_steps, time.monotonic()
        self._shown.note = "validating"
        progress.show(self.status())
        try:
            found = self.selector.validate(self.learner.online)
        finally:
            self._shown.note = ""
        self.history.add_validation(step, found.mean)
        self._metrics.validation(step, found.mean)
        self._is_solved = found.is_solved
        # The next multiple, so that all runs with these settings are validated at the same steps.
        self._next_validation = (step // self._settings.validate_interval + 1) * self._settings.validate_interval
        self._validated_s += time.monotonic() - began

    def _evaluate(self, network: ActingNetwork, seeds: Sequence[int]) -> EvaluationResult:
        result = evaluate(
            network,
            partial(make_environment, self._env.env_id, self._settings.atari.in_evaluation()),
            seeds,
            first_action=self._env.first_action,
            epsilon=self._settings.evaluation_epsilon,
            device=self._device,
            should_stop=self._stop.is_set,
            step_timeout_s=self._settings.step_timeout_s,
        )
        for value in result.returns:
            require_return(float(value), "a greedy episode")
        return result

    def _publish(self) -> None:
        if self.guide is not None:
            self.guide.publish(self.learner.weights())

    def _make_task(self, epsilons: tuple[float, ...]) -> ActorTask:
        settings = self._settings
        return ActorTask(
            start=secrets.randbits(62),
            env_id=self._env.env_id,
            environments=settings.envs_per_actor,
            atari=settings.atari,
            table=settings.table or self.run.name,
            n_step=settings.n_step,
            gamma=settings.gamma,
            network=self.learner.spec,
            seed=self._seeds.seed,
            starts=self._seeds.start,
            epsilons=epsilons,
            actor_priorities=settings.actors_estimate,
            clip_rewards=settings.clip_rewards,
            check_steps=settings.check_steps,
            step_timeout_s=settings.step_timeout_s,
        )

    def _start_guide(self, client: ReplayClient, task: ActorTask) -> ActorGuide:
        guide = ActorGuide(
            client,
            self.run.name,
            task,
            self._guidance,
            lead_steps=self._settings.lead_steps,
            reconnect_timeout_s=self._settings.reconnect_timeout_s,
        )
        guide.publish(self.learner.weights())
        return guide

    def _guidance(self) -> Guidance:
        """Return what actors may do; called in the guide's thread."""
        return Guidance(table_number(self.table.uid), self.pacer.goal, self._epsilon(self.pacer.env_steps))

    def _make_selector(self) -> NetworkSelector:
        settings = self._settings
        episodes = max(settings.confirm_episodes, settings.validation_episodes)
        return NetworkSelector(
            self._evaluate,
            lambda number: self._seeds.validation(number, episodes),
            settings.validation_episodes,
            settings.solved_return,
        )


def _exploration(settings: TrainSettings) -> tuple[LinearSchedule, tuple[float, ...]]:
    """Return the trainer's epsilon and the constant epsilons of the other actors.

    If there are no constant epsilons, the other actors use the trainer's.
    """
    if settings.exploration == "annealed":
        return LinearSchedule(settings.epsilon_start, settings.epsilon_end, settings.epsilon_steps), ()
    epsilons = ape_x_epsilons(settings.ape_x_epsilon, settings.ape_x_alpha, settings.explorers)
    return LinearSchedule(epsilons[0], epsilons[0], steps=0), epsilons[settings.acts :]


class _Due:
    """Timers of periodic tasks."""

    def __init__(self, settings: TrainSettings) -> None:
        self.show = Interval(SHOW_INTERVAL_S)
        self.log = Interval(settings.log_interval_s)
        self.checkpoint = Interval(settings.checkpoint_interval_s)
        self.supervision = Interval(SUPERVISE_INTERVAL_S)
        self.silence = Interval(SILENCE_S)
        self.missed = Interval(MISSED_INTERVAL_S)


class _Shown:
    """State for display only."""

    def __init__(self) -> None:
        self.step_rate, self.update_rate = RateMeter(), RateMeter()
        self.batch: TensorBatch | None = None
        self.batch_wait_s = 0.0
        self.note = ""
        self.missed = 0
