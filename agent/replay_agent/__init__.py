"""Double DQN, C51 and R2D2 with prioritized replay, as parts for your own training loop.

`docs/trainer/trainer.md` shows such a loop. The commands `replay-train` and `replay-actor` are built from the same
parts.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replay_agent.acting.actor import EpsilonGreedyPolicy
    from replay_agent.acting.environments import describe_environment, make_environment, make_environments
    from replay_agent.acting.evaluation import EvaluationResult, evaluate
    from replay_agent.algorithms import sequence_batch, sequence_columns, step_columns, transition_batch
    from replay_agent.dqn.c51 import C51
    from replay_agent.dqn.double_dqn import DoubleDQN, TransitionBatch
    from replay_agent.dqn.learner import DoubleDQNConfig, LossResult, UpdateResult
    from replay_agent.dqn.networks import NetworkSpec, QNetwork, build_network
    from replay_agent.r2d2 import R2D2, R2D2Config, RecurrentQNetwork, SequenceBatch, build_recurrent_network
    from replay_agent.trainer import Trainer
    from replay_agent.training.schedules import LinearSchedule

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

__all__ = [
    "C51",
    "R2D2",
    "DoubleDQN",
    "DoubleDQNConfig",
    "EpsilonGreedyPolicy",
    "EvaluationResult",
    "LinearSchedule",
    "LossResult",
    "NetworkSpec",
    "QNetwork",
    "R2D2Config",
    "RecurrentQNetwork",
    "SequenceBatch",
    "Trainer",
    "TransitionBatch",
    "UpdateResult",
    "build_network",
    "build_recurrent_network",
    "describe_environment",
    "evaluate",
    "make_environment",
    "make_environments",
    "sequence_batch",
    "sequence_columns",
    "step_columns",
    "transition_batch",
]


def __getattr__(name: str) -> Any:
    """Import a part on first use: torch takes seconds to load, and `--help` does not need it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
