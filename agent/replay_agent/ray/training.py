"""Runs `replay-train` on Ray: starts servers and a learner, waits until the learner has finished, and stops them."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import ray
from ray.exceptions import RayActorError, RayTaskError
from replay_client.security import TOKEN_VARIABLE

from replay_agent.acting.environments import inspect_environment
from replay_agent.dqn.networks import is_image
from replay_agent.processes.own_access import find_access
from replay_agent.processes.signals import StopRequest
from replay_agent.ray.actor_pool import RayActorPool
from replay_agent.ray.placement import Placement, PlacementError, wait_for_room
from replay_agent.ray.service import ServiceError, connect, start, stop
from replay_agent.reporting.progress import set_up_logging
from replay_agent.reporting.training_report import TrainingReport
from replay_agent.settings.train_settings import TrainSettings
from replay_agent.training.checkpoint import checkpoints
from replay_agent.training.devices import gpus_to_reserve
from replay_agent.training.run import FAILURES, train
from replay_agent.training.run_directory import RunDirectory, open_run_directory

log = logging.getLogger("replay_agent")

LEARNER_RESTARTS: Final = 3
OBJECT_STORE_BYTES: Final = 100 << 20
"""Size of Ray's object store if this command starts Ray. It can be small, because no rows pass through Ray."""
_POLL_S: Final = 0.2


class LearnerFailedError(RuntimeError):
    """The learner failed; the message says why."""


RAY_FAILURES: Final = (*FAILURES, ConnectionError, LearnerFailedError, PlacementError, ServiceError)
"""Errors of `train_on_ray` that a user can resolve."""


class RemoteLearner:
    """The learner of a run, in a Ray process. Ray restarts the process if it dies."""

    def __init__(self, settings: TrainSettings, run: Path) -> None:
        self._settings = settings
        self._run = run
        self._stop = StopRequest()

    def train(self) -> TrainingReport:
        """Train, from the newest checkpoint if there is one.

        Raises:
            LearnerFailedError: training failed.
        """
        console = set_up_logging(self._settings.log_level)
        try:
            run = RunDirectory(self._run)
            access = run.replay / "access"
            with connect(run.name) as client:
                resume = self._run if checkpoints(run.checkpoints) else None
                settings = self._settings.model_copy(update={"server": client.address, "resume": resume})
            os.environ[TOKEN_VARIABLE] = find_access(access).token

            def start_pool(_server: str) -> RayActorPool:
                return RayActorPool(self._settings, run.name, access, run.logs)

            return train(settings, self._stop, console, run=run, start_pool=start_pool)
        except (*FAILURES, ServiceError) as error:
            log.debug("because of", exc_info=error)
            raise LearnerFailedError("\n".join([str(error), *getattr(error, "__notes__", [])])) from None

    def stop(self) -> None:
        """Stop training; the run can be resumed."""
        self._stop.set()


def train_on_ray(settings: TrainSettings, stop_request: StopRequest) -> TrainingReport:
    """Start or resume a run on a Ray cluster, and return its report.

    The learner's log and progress appear in this process's log. Checkpoints are in the run's directory, which
    all nodes must share. So are tables, unless ``ray_data_dir`` is set. A restarted learner continues from the newest
    checkpoint.

    Raises:
        Exception: one of `RAY_FAILURES`.
    """
    env = inspect_environment(settings.env)
    for_images = is_image(env.observation_shape, env.observation_dtype)
    cpus = settings.shards + 1 + settings.actors * settings.actor_cpus
    # Ray installs its own signal handlers, so install those of the stop request after Ray has started.
    with _ray(settings, math.ceil(cpus)) as host, stop_request:
        gpus = gpus_to_reserve(settings.device, ray.cluster_resources().get("GPU", 0.0), for_images=for_images)
        learner = {"CPU": 1.0, **({"GPU": gpus} if gpus else {})}
        wait_for_room({**learner, "CPU": cpus}, settings.placement_timeout_s)
        run = open_run_directory(settings)
        try:
            servers = start(
                run.name,
                shards=settings.shards,
                folder=run.replay,
                data_dir=settings.ray_data_dir and settings.ray_data_dir / run.name,
                server_config=settings.server_config,
                lost_after_s=settings.lost_after_s,
                placement_timeout_s=settings.placement_timeout_s,
                host=host,
            )
            with servers:
                log.info("replay servers at %s, run in %s", servers.address, run.path)
            return _follow(settings, run, learner, stop_request)
        finally:
            stop(run.name)


def _follow(
    settings: TrainSettings, run: RunDirectory, reserved: Mapping[str, float], stop_request: StopRequest
) -> TrainingReport:
    """Start the learner, wait until it has finished, and return its report."""
    options = {"max_restarts": LEARNER_RESTARTS, "max_task_retries": LEARNER_RESTARTS, "max_concurrency": 3}
    kind = ray.remote(RemoteLearner).options(num_cpus=1, num_gpus=reserved.get("GPU", 0.0), **options)
    learner = kind.remote(settings, run.path.resolve())
    Placement([learner.__ray_ready__.remote()], "learners", reserved, settings.placement_timeout_s).wait()
    training = learner.train.remote()
    try:
        while not ray.wait([training], timeout=_POLL_S)[0]:
            if stop_request.is_set():
                learner.stop.remote()
        report: TrainingReport = ray.get(training)
    except RayTaskError as error:
        raise LearnerFailedError(str(error.cause)) from error
    except RayActorError as error:
        raise LearnerFailedError(f"the learner died {LEARNER_RESTARTS + 1} times: {error}") from error
    finally:
        ray.kill(learner, no_restart=True)
    return report


@contextmanager
def _ray(settings: TrainSettings, cpus: int) -> Iterator[str | None]:
    """Connect to Ray, or start it on this machine with room for the run.

    Yields:
        The address that the run's processes bind to; None: each uses its node's address.
    """
    assert settings.ray is not None
    host = None
    try:
        ray.init(address=settings.ray, logging_level=logging.WARNING)
    except ConnectionError:
        if settings.ray != "auto":
            raise
        log.info("starting Ray on this machine")
        ray.init(
            address="local",
            num_cpus=max(cpus, os.cpu_count() or 1),
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            logging_level=logging.WARNING,
        )
        host = "127.0.0.1"
    try:
        yield host
    finally:
        ray.shutdown()
