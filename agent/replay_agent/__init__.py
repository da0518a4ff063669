"""Double DQN, C51 and R2D2 with prioritized replay, as parts for your own training loop.

`docs/trainer/trainer.md` shows such a loop. The commands `replay-train` and `replay-actor` are built from the same
parts.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replay_agent.acting.actor import EpsilonGreedyPolicy as EpsilonGreedyPolicy
    from replay_agent.acting.environments import describe_environment as describe_environment
    from replay_agent.acting.environments import make_environment as make_environment
    from replay_agent.acting.environments import make_environments as make_environments
    from replay_agent.acting.evaluation import EvaluationResult as EvaluationResult
    from replay_agent.acting.evaluation import evaluate as evaluate
    from replay_agent.algorithms import sequence_batch as sequence_batch
    from replay_agent.algorithms import sequence_columns as sequence_columns
    from replay_agent.algorithms import step_columns as step_columns
    from replay_agent.algorithms import transition_batch as transition_batch
    from replay_agent.dqn.c51 import C51 as C51
    from replay_agent.dqn.double_dqn import DoubleDQN as DoubleDQN
    from replay_agent.dqn.double_dqn import TransitionBatch as TransitionBatch
    from replay_agent.dqn.learner import DoubleDQNConfig as DoubleDQNConfig
    from replay_agent.dqn.learner import LossResult as LossResult
    from replay_agent.dqn.learner import UpdateResult as UpdateResult
    from replay_agent.dqn.networks import NetworkSpec as NetworkSpec
    from replay_agent.dqn.networks import QNetwork as QNetwork
    from replay_agent.dqn.networks import build_network as build_network
    from replay_agent.r2d2 import R2D2 as R2D2
    from replay_agent.r2d2 import R2D2Config as R2D2Config
    from replay_agent.r2d2 import RecurrentQNetwork as RecurrentQNetwork
    from replay_agent.r2d2 import SequenceBatch as SequenceBatch
    from replay_agent.r2d2 import build_recurrent_network as build_recurrent_network
    from replay_agent.trainer import Trainer as Trainer
    from replay_agent.training.schedules import LinearSchedule as LinearSchedule

__version__ = version("replay-service")

_MODULES = {
    "acting.actor": ["EpsilonGreedyPolicy"],
    "acting.environments": ["describe_environment", "make_environment", "make_environments"],
    "acting.evaluation": ["EvaluationResult", "evaluate"],
    "algorithms": ["sequence_batch", "sequence_columns", "step_columns", "transition_batch"],
    "dqn.c51": ["C51"],
    "dqn.double_dqn": ["DoubleDQN", "TransitionBatch"],
    "dqn.learner": ["DoubleDQNConfig", "LossResult", "UpdateResult"],
    "dqn.networks": ["NetworkSpec", "QNetwork", "build_network"],
    "r2d2": ["R2D2", "R2D2Config", "RecurrentQNetwork", "SequenceBatch", "build_recurrent_network"],
    "trainer": ["Trainer"],
    "training.schedules": ["LinearSchedule"],
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    """Import a part on first use: torch takes seconds to load, and `--help` does not need it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
