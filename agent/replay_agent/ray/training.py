"""Runs `replay-train` on Ray: starts servers and a learner, waits until the learner has finished, and stops them."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayActorError, RayTaskError
from replay_client.security import TOKEN_VARIABLE
from rich.console import Console

from replay_agent.acting.environments import inspect_environment
from replay_agent.dqn.networks import network_kind
from replay_agent.processes.own_access import find_access
from replay_agent.processes.signals import StopRequest
from replay_agent.ray.actor_pool import RayActorPool
from replay_agent.ray.placement import PlacementError, wait_for_room, wait_until_placed
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
_LOOPBACK: Final = "127.0.0.1"
_POLL_S: Final = 0.2
AUTO: Final = "auto"


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

    def ready(self) -> None:
        """Do nothing: the reply shows that Ray has placed the learner."""

    def train(self) -> TrainingReport:
        """Train, from the newest checkpoint if there is one.

        Raises:
            LearnerFailedError: training failed.
        """
        console = Console(stderr=True)
        set_up_logging(self._settings.log_level, console)
        try:
            run = RunDirectory(self._run)
            with connect(run.name) as client:
                settings = self._settings.model_copy(
                    update={
                        "server": client.address,
                        "resume": self._run if checkpoints(run.checkpoints) else None,
                    }
                )
            os.environ[TOKEN_VARIABLE] = self._access.token
            return train(settings, self._stop, console, run=run, start_pool=self._start_pool)
        except (*FAILURES, ServiceError) as error:
            log.debug("because of", exc_info=error)
            raise LearnerFailedError("\n".join([str(error), *getattr(error, "__notes__", [])])) from None

    def stop(self) -> None:
        """Stop training; the run can be resumed."""
        self._stop.set()

    @property
    def _access(self) -> Any:
        return find_access(RunDirectory(self._run).replay / "access")

    def _start_pool(self, _server: str) -> RayActorPool:
        return RayActorPool(
            self._settings.actors,
            RunDirectory(self._run).name,
            self._access.token_file.parent,
            reconnect_timeout_s=self._settings.reconnect_timeout_s,
            cpus=self._settings.actor_cpus,
            placement_timeout_s=self._settings.placement_timeout_s,
        )


def train_on_ray(settings: TrainSettings, stop_request: StopRequest) -> TrainingReport:
    """Start or resume a run on a Ray cluster, and return its report.

    The learner's log and progress appear in this process's log. Checkpoints are in the run's directory, which
    all nodes must share. So are tables, unless ``ray_data_dir`` is set. A restarted learner continues from the newest
    checkpoint.

    Raises:
        PlacementError: the cluster lacks resources; the message names the one that is short.
        ConnectionError: there is no Ray cluster at the address.
        ServiceError: the replay servers do not start.
        LearnerFailedError: training failed, or the learner died too often.
    """
    env = inspect_environment(settings.env)
    kind = network_kind(env.observation_shape, env.observation_dtype)
    cpus = settings.shards + 1 + settings.actors * settings.actor_cpus
    # Ray installs its own signal handlers, so install those of the stop request after Ray has started.
    with _ray(settings, math.ceil(cpus)) as host, stop_request:
        gpus = gpus_to_reserve(settings.device, kind, ray.cluster_resources().get("GPU", 0.0))
        wait_for_room({"CPU": cpus, **({"GPU": gpus} if gpus else {})}, settings.placement_timeout_s)
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
            return _follow(settings, run, gpus, stop_request)
        finally:
            stop(run.name)


def _follow(settings: TrainSettings, run: RunDirectory, gpus: float, stop_request: StopRequest) -> TrainingReport:
    options = {"max_restarts": LEARNER_RESTARTS, "max_task_retries": LEARNER_RESTARTS, "max_concurrency": 3}
    learner = (
        ray.remote(RemoteLearner).options(num_cpus=1, num_gpus=gpus, **options).remote(settings, run.path.resolve())
    )
    each = {"CPU": 1.0, **({"GPU": gpus} if gpus else {})}
    wait_until_placed([learner.ready.remote()], "learners", each, settings.placement_timeout_s)
    training = learner.train.remote()
    is_told = False
    try:
        while not ray.wait([training], timeout=_POLL_S)[0]:
            if stop_request.is_set() and not is_told:
                is_told = True
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
    common = {"logging_level": logging.WARNING}
    try:
        ray.init(address=settings.ray, **common)
        host = None
    except ConnectionError:
        if settings.ray != AUTO:
            raise
        log.info("starting Ray on this machine")
        ray.init(
            address="local",
            num_cpus=max(cpus, os.cpu_count() or 1),
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            **common,
        )
        host = _LOOPBACK
    try:
        yield host
    finally:
        ray.shutdown()
