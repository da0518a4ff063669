"""A run from start to end: sets up server, table, learner and actors, trains, and writes the result."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from replay_client import LocalServer, LocalServerError, ReplayClient, ReplayError, Tls
from replay_client.security import token_from_environment
from replay_proto.channels import host_and_port
from rich.console import Console
from safetensors.torch import save_file

from replay_agent.acting.environments import inspect_environment
from replay_agent.acting.evaluation import EvaluationStoppedError
from replay_agent.acting.step_guard import EnvironmentFailedError
from replay_agent.distributed.run_tables import CALL_S
from replay_agent.dqn.divergence import DivergedError
from replay_agent.dqn.networks import is_image
from replay_agent.processes.actor_pool import ActorPool, ActorsFailError, Pool
from replay_agent.processes.own_access import actor_environment, own_access
from replay_agent.processes.signals import StopRequest
from replay_agent.replay.run_table import check_table
from replay_agent.reporting.curve import draw_curve
from replay_agent.reporting.metrics_port import MetricsPort
from replay_agent.reporting.progress import make_progress
from replay_agent.reporting.tensorboard import MetricsLog
from replay_agent.reporting.training_report import EvaluationSummary, TrainingReport
from replay_agent.settings.train_settings import TrainSettings
from replay_agent.settings.whole_files import replace_text, replacing
from replay_agent.training.checkpoint import CheckpointError
from replay_agent.training.devices import choose_device, limit_threads
from replay_agent.training.run_directory import RunDirectory, open_run_directory
from replay_agent.training.training_loop import Ending, TrainingLoop

log = logging.getLogger("replay_agent")

# An embedded server is never restarted: it is considered dead after this long without an answer.
EMBEDDED_TIMEOUT_S = 15.0
# After a run diverged, the suggested learning rate is smaller by this factor.
SMALLER_STEP = 10
FAILURES = (
    ActorsFailError,
    CheckpointError,
    DivergedError,
    EnvironmentFailedError,
    OSError,
    ReplayError,
    ValueError,
)
"""Errors of `train` that a user can resolve; the messages say how."""


def train(
    settings: TrainSettings,
    stop: StopRequest,
    console: Console,
    *,
    run: RunDirectory | None = None,
    start_pool: Callable[[str], Pool] | None = None,
) -> TrainingReport:
    """Start or resume a run, train, and return the report.

    Args:
        settings: settings of the run.
        stop: set it to stop the run, which can then be resumed.
        console: shows progress.
        run: the run's directory; None: create it, or open the one to resume.
        start_pool: function that starts the actors, given the addresses of the replay servers; None: actors are
            processes on this machine.

    Raises:
        Exception: one of `FAILURES`.
    """
    env = inspect_environment(settings.env)
    check_table(settings, env)
    for_images = is_image(env.observation_shape, env.observation_dtype)
    device = choose_device(settings.device, for_images=for_images)
    limit_threads(settings.threads, for_images=for_images)
    run = run or open_run_directory(settings)
    with ExitStack() as stack:
        lock = stack.enter_context(run.locked())
        run.begin(settings)
        own = stack.enter_context(own_access(run.access)) if settings.server is None else None
        embedded = None
        if own:
            log.info("starting a replay server")
            # The server stores its tables in the run's directory, so that the run can be resumed.
            embedded = LocalServer(run.replay, token=own.token, log_path=run.logs / "server.log", keep_open=[lock])
            stack.callback(embedded.close)
        address = settings.server or (embedded.address if embedded else "")

        token = own.token if own else token_from_environment()
        tls = None if own else Tls.from_environment()  # its own server listens on loopback only, without TLS
        client = stack.enter_context(
            ReplayClient(address, token=token, tls=tls, wait_for_server_s=settings.reconnect_timeout_s)
        )
        guide_client = None
        if settings.admits_actors:
            guide_client = stack.enter_context(ReplayClient(address, token=token, tls=tls, timeout_s=CALL_S))
        metrics = MetricsLog(run.tensorboard if settings.tensorboard else None)
        stack.callback(metrics.close)
        timeout_s = EMBEDDED_TIMEOUT_S if embedded else settings.reconnect_timeout_s
        with _explained_by(embedded):
            trainer = TrainingLoop(settings, run, env, client, stop, metrics, device, timeout_s, guide_client)
            stack.callback(trainer.close)
            saved = trainer.learner.saved(
                settings.env, settings.atari.in_evaluation(), env.first_action, settings.evaluation_epsilon
            )
            replace_text(run.agent, saved.to_json())
            if settings.resume is not None:
                trainer.resume()
            log.info("replay server at %s, run %s in %s", address, run.name, run.path)
            if own:
                log.info("to inspect the replay server: %s", own.command(address))
            pool: Pool | None = None
            if settings.actors and start_pool is not None:
                pool = start_pool(address)
            elif settings.actors:
                environment = actor_environment(own, os.environ)
                # One observation at a time is too little work for several threads.
                threads = 1 if settings.envs_per_actor == 1 else max(1, (os.cpu_count() or 1) // settings.actors)
                pool = ActorPool(
                    settings.actors,
                    address,
                    run.name,
                    run.logs,
                    settings.reconnect_timeout_s,
                    environment,
                    threads=threads,
                )
            ending = _train(settings, trainer, run, pool, console)
            return _conclude(settings, trainer, run, ending)


def _train(
    settings: TrainSettings, trainer: TrainingLoop, run: RunDirectory, pool: Pool | None, console: Console
) -> Ending:
    """Train with actors and a progress bar. Then save a checkpoint, even after an error, unless training diverged."""
    with ExitStack() as stack:
        if pool is not None:
            stack.callback(pool.close)
        progress = stack.enter_context(make_progress(console, settings.env, settings.steps, shown=settings.progress))
        if settings.http_port is not None:
            port = MetricsPort(progress, settings.http_host, settings.http_port)
            progress = stack.enter_context(port)
            log.info("metrics at http://%s/metrics", host_and_port(settings.http_host, port.port))
        try:
            ending = trainer.train(progress, pool)
            trainer.save()
        except DivergedError as error:
            error.add_note(_advice(settings, trainer, run))
            raise
        except BaseException:
            trainer.save()
            log.info("progress is saved; to resume: replay-train --resume %s", run.path)
            raise
        finally:
            trainer.end()
        return ending


def _advice(settings: TrainSettings, trainer: TrainingLoop, run: RunDirectory) -> str:
    """Return advice for a diverged run."""
    return (
        f"Detected at environment step {trainer.pacer.env_steps}; the diverged state was not saved. Lower "
        f"--learning-rate (now {settings.learning_rate:g}) or --max-grad-norm (now {settings.max_grad_norm:g}), or "
        "scale the environment's rewards down. If that does not help, look for observations or rewards that "
        "are not finite.\n"
        f"To resume from the last finite checkpoint: replay-train --resume {run.path} "
        f"--learning-rate {settings.learning_rate / SMALLER_STEP:g}"
    )


def _conclude(settings: TrainSettings, trainer: TrainingLoop, run: RunDirectory, ending: Ending) -> TrainingReport:
    """Evaluate, plot the curve, write the result, and clean up."""
    if trainer.selector.best_weights is not None:
        with replacing(run.best) as written:
            save_file(trainer.selector.best_weights, written)
    title = f"{settings.env}, {settings.algorithm}, {settings.backend}, seed {settings.seed}"
    draw_curve(trainer.history, run.curve, title, settings.solved_return)
    replace_text(run.history, json.dumps(vars(trainer.history), allow_nan=False) + "\n")
    evaluation = None
    if ending is not Ending.STOPPED and settings.evaluation_episodes:
        with suppress(EvaluationStoppedError):
            evaluation = EvaluationSummary.of(trainer.evaluate_best())
    report = TrainingReport(
        env=settings.env,
        algorithm=settings.algorithm,
        backend=settings.backend,
        seed=settings.seed,
        ending=ending.value,
        env_steps=trainer.pacer.env_steps,
        updates=trainer.learner.updates,
        training_s=trainer.training_s,
        best_validation=trainer.selector.best_mean,
        evaluation=evaluation,
        run_dir=str(run.path),
        curve=str(run.curve),
        history=str(run.history),
    )
    report.save(run.result)
    if ending is not Ending.STOPPED:
        trainer.drop_tables()
    return report


@contextmanager
def _explained_by(embedded: LocalServer | None) -> Iterator[None]:
    """If calls fail because the embedded server died, report how it died."""
    try:
        yield
    except ReplayError as error:
        if embedded is None or embedded.is_running:
            raise
        raise LocalServerError(embedded.describe_end()) from error
