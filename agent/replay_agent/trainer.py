"""Trains an agent from a program, as `replay-train` does from the command line.

from replay_agent import DoubleDQN, Trainer

report = Trainer("CartPole-v1", server="localhost:50051", learner=QRDQN, network=Network).run()
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
from torch import nn

from replay_agent.dqn.learner import Learner
from replay_agent.dqn.networks import NetworkSpec
from replay_agent.own_parts import MAIN, OwnPartError, name_of
from replay_agent.processes.signals import StopRequest
from replay_agent.reporting.progress import set_up_logging
from replay_agent.reporting.training_report import TrainingReport
from replay_agent.settings.train_settings import TrainSettings, saved_settings
from replay_agent.training.run import train


class Trainer:
    """Trains an agent with a network, a loss and an environment of one's own.

    Actors in other processes find these parts by their names, so classes and functions must be at the top level of a
    module. If they are in the program itself, which other processes cannot import, only the trainer acts.
    """

    def __init__(
        self,
        env: str | Callable[..., gymnasium.Env[Any, Any]],
        *,
        server: str | None = None,
        learner: type[Learner[Any, Any]] | None = None,
        network: Callable[[NetworkSpec], nn.Module] | None = None,
        **settings: Any,
    ) -> None:
        """Prepare a run.

        Args:
            env: a Gymnasium id, or a function that makes an environment.
            server: address of a replay server; None: start one.
            learner: a subclass of `DoubleDQN` or, with ``algorithm="r2d2"``, of `R2D2`; None: that class itself.
            network: makes the network; see `OwnNetwork`. None: the usual one for the environment.
            settings: settings of `replay-train`, such as ``steps=60_000``. With ``resume="runs/NAME"``, those that are
                not given are the run's.

        Raises:
            OwnPartError: actors could not find one of the parts.
            ValueError: a setting is unknown or invalid, or there is no run to resume.
        """
        parts = {"env": env, "learner": learner, "network": network}
        names = {name: part if isinstance(part, str | None) else name_of(part) for name, part in parts.items()}
        given = {name: value for name, value in {"server": server, **names}.items() if value is not None} | settings
        saved = {} if settings.get("resume") is None else saved_settings(Path(settings["resume"]))
        self.settings = TrainSettings(**{**saved, **given})
        """All settings of the run."""
        of_program = [name for name in names.values() if name is not None and name.startswith(f"{MAIN}:")]
        if of_program and self.settings.actors:
            raise OwnPartError(
                f"expected parts that {self.settings.actors} actors can import; {', '.join(of_program)} are in the "
                "program itself: move them to a module of their own, or leave out actors"
            )

    def run(self) -> TrainingReport:
        """Train until the environment is solved or all steps are taken, and return the report.

        The first Ctrl-C stops the run, which can be resumed then.

        Raises:
            replay_agent.training.run.FAILURES: see `train`.
        """
        console = set_up_logging(self.settings.log_level)
        with StopRequest() as stop:
            return train(self.settings, stop, console)
