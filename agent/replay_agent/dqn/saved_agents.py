"""What a run directory says about its agent, so that its networks can be used without the run.

RUN/agent.json                      environment, learner, architecture and hyperparameters
RUN/checkpoints/step-*/             the newest checkpoint, with the best network so far
RUN/best.safetensors                the same network, if somebody has removed the checkpoints of a run that has ended
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from replay_agent.atari_options import AtariOptions
from replay_agent.dqn.networks import NetworkSpec

AGENT_FILE: Final = "agent.json"
FORMAT: Final = 1
_NETWORKS: Final = (
    "checkpoints/step-*[0-9]/best.safetensors",
    "best.safetensors",  # that of the last start that ended; a run that continues may have a better one
    "checkpoints/step-*[0-9]/online.safetensors",
)


class SavedAgentError(ValueError):
    """A directory has no agent that can be loaded so."""


@dataclass(frozen=True, config=ConfigDict(ser_json_inf_nan="constants"))
class SavedAgent:
    """The agent of a run, without its weights.

    Attributes:
        env_id: the environment, as for `make_environment`.
        atari: how Atari games are played.
        first_action: the number that the environment uses for action 0.
        evaluation_epsilon: probability of a random action in evaluations.
        algorithm: ``dqn``, ``c51`` or ``r2d2``.
        learner: name of the learner's class if it is one of the user, as ``module:name``; None: the usual one.
        spec: architecture of the network.
        config: hyperparameters of the learner, by name.
        format: version of the file.
    """

    env_id: str
    atari: AtariOptions
    first_action: int
    evaluation_epsilon: float
    algorithm: str
    learner: str | None
    spec: NetworkSpec
    config: dict[str, Any]
    format: int = FORMAT

    def to_json(self) -> str:
        """Return the content of the file."""
        return _AGENT.dump_json(self, indent=2).decode() + "\n"

    @staticmethod
    def read(run: Path) -> SavedAgent:
        """Read the file of a run.

        Raises:
            SavedAgentError: it is missing, or of another version.
        """
        path = run / AGENT_FILE
        try:
            found = _AGENT.validate_json(path.read_bytes())
        except OSError as error:
            raise SavedAgentError(f"expected the directory of a run: {path}: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors()[0]
            what = f"{'.'.join(map(str, first['loc']))} {first['msg']}".strip()
            raise SavedAgentError(f"{path} is of another version of replay-train, or corrupt: {what}") from error
        if found.format != FORMAT:
            raise SavedAgentError(
                f"expected format {FORMAT} of {path}, got {found.format}; use a version that reads it"
            )
        return found


_AGENT = TypeAdapter(SavedAgent)


def best_weights(run: Path) -> dict[str, Tensor]:
    """Return the tensors of a run's best network so far.

    Raises:
        SavedAgentError: there is none yet, or its file is corrupt.
    """
    for pattern in _NETWORKS:
        for path in sorted(run.glob(pattern), reverse=True):
            try:
                return load_file(path)
            except (OSError, SafetensorError) as error:
                raise SavedAgentError(f"{path} cannot be read: {error}") from error
    raise SavedAgentError(f"{run} has no network yet; a run writes its first checkpoint when it begins to train")
