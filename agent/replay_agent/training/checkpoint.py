"""Checkpoints: directories with tensors in safetensors format and everything else as JSON. Nothing is pickled.

A checkpoint is written under a temporary name and then renamed, so every visible one is complete. All numbers in it are
finite; this is checked when it is written and again when it is read.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim import Optimizer

from replay_agent.dqn.divergence import all_finite, require_finite
from replay_agent.dqn.double_dqn import DoubleDQN

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
PREFIX = "step-"
PARTIAL_SUFFIX = ".partial"
# Kept for diagnosis; it no longer counts as a checkpoint.
UNUSABLE_SUFFIX = ".unusable"
STATE_FILE = "state.json"
ONLINE_FILE, TARGET_FILE = "online.safetensors", "target.safetensors"
OPTIMIZER_FILE, RANDOM_FILE, BEST_FILE = "optimizer.safetensors", "random.safetensors", "best.safetensors"


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read, or does not fit the run."""


@dataclass(frozen=True)
class Checkpoint:
    """Contents of a checkpoint besides the learner's state.

    Attributes:
        state: JSON values passed to `save_checkpoint`.
        best_weights: tensors of the best network so far, if there was one.
    """

    state: dict[str, Any]
    best_weights: dict[str, Tensor] | None


def save_checkpoint(
    directory: Path,
    step: int,
    learner: DoubleDQN,
    state: Mapping[str, Any],
    best_weights: Mapping[str, Tensor] | None,
    keep: int,
) -> Path:
    """Write a checkpoint and remove the oldest beyond ``keep``.

    Args:
        directory: of all checkpoints of the run.
        step: environment steps so far; names the checkpoint.
        learner: its networks, optimizer and count of updates, and torch's generators, are saved.
        state: JSON values to save along.
        best_weights: tensors of the best network so far.
        keep: number of checkpoints to keep, including this one.

    Raises:
        DivergedError: a number of the learner is not finite; nothing was written or removed.
    """
    require_finite(learner)
    final = directory / f"{PREFIX}{step:012d}"
    partial = final.with_suffix(PARTIAL_SUFFIX)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_file(_on_cpu(learner.online.state_dict()), partial / ONLINE_FILE)
    save_file(_on_cpu(learner.target.state_dict()), partial / TARGET_FILE)
    save_file(_optimizer_tensors(learner.optimizer), partial / OPTIMIZER_FILE)
    save_file(_random_state(), partial / RANDOM_FILE)
    if best_weights is not None:
        save_file(dict(best_weights), partial / BEST_FILE)
    document = {"format": FORMAT_VERSION, "updates": learner.updates, "run": dict(state)}
    (partial / STATE_FILE).write_text(json.dumps(document, allow_nan=False))
    shutil.rmtree(final, ignore_errors=True)
    os.replace(partial, final)
    for old in checkpoints(directory)[:-keep]:
        shutil.rmtree(old)
    return final


def checkpoints(directory: Path) -> list[Path]:
    """All complete checkpoints, oldest first."""
    found = directory.glob(f"{PREFIX}*") if directory.is_dir() else []
    return sorted(path for path in found if path.suffix not in (PARTIAL_SUFFIX, UNUSABLE_SUFFIX))


def load_latest(directory: Path, learner: DoubleDQN) -> Checkpoint:
    """Restore the learner and torch's generators from the newest usable checkpoint.

    Newer ones that are corrupt, or contain non-finite numbers, are logged and set aside.

    Raises:
        CheckpointError: there is none, or it does not match this learner.
    """
    found = checkpoints(directory)
    if not found:
        raise CheckpointError(f"no checkpoint in {directory}: the run ended before its first one, start it again")
    unusable: dict[Path, str] = {}
    for path in reversed(found):
        try:
            content = _read(path)
        except _UnusableError as error:
            unusable[path] = str(error)
            continue
        checkpoint = _apply(content, path, learner)
        for other, reason in unusable.items():
            log.warning("%s is unusable (%s): it is set aside, loading %s", other, reason, path.name)
            other.rename(other.with_suffix(UNUSABLE_SUFFIX))
        return checkpoint
    reasons = "; ".join(f"{path.name}: {reason}" for path, reason in unusable.items())
    raise CheckpointError(f"no checkpoint in {directory} is usable, start the run again: {reasons}")


class _UnusableError(Exception):
    """A checkpoint is corrupt, or contains non-finite numbers."""


@dataclass(frozen=True)
class _Content:
    """All files of a checkpoint."""

    document: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]


def _read(path: Path) -> _Content:
    """Read a complete checkpoint before using any of it."""
    try:
        document = json.loads((path / STATE_FILE).read_text())
        version = document["format"]
        files = [ONLINE_FILE, TARGET_FILE, OPTIMIZER_FILE, RANDOM_FILE]
        if (path / BEST_FILE).is_file():
            files.append(BEST_FILE)
        tensors = {name: load_file(path / name) for name in files} if version == FORMAT_VERSION else {}
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise _UnusableError(f"damaged: {type(error).__name__}: {error}") from error
    if version != FORMAT_VERSION:
        raise CheckpointError(f"{path} has format {version}, expected {FORMAT_VERSION}")
    wrong = [name for name, content in tensors.items() if not all_finite(content.values())]
    if wrong:
        raise _UnusableError(f"not finite: {', '.join(wrong)}")
    return _Content(document, tensors)


def _apply(content: _Content, path: Path, learner: DoubleDQN) -> Checkpoint:
    document, tensors = content.document, content.tensors
    try:
        learner.online.load_state_dict(tensors[ONLINE_FILE])
        learner.target.load_state_dict(tensors[TARGET_FILE])
    except RuntimeError as error:
        raise CheckpointError(
            f"{path} contains a different network from the settings; resume with the same "
            f"--env, --hidden-sizes and --dueling: {error}"
        ) from error
    _restore_optimizer(learner.optimizer, tensors[OPTIMIZER_FILE])
    learner.updates = document["updates"]
    _restore_random_state(tensors[RANDOM_FILE])
    return Checkpoint(document["run"], tensors.get(BEST_FILE))


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's state, by ``parameter.name``."""
    return {
        f"{index}.{name}": value.detach().cpu().contiguous()
        for index, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }


def _restore_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore the optimizer's state; hyperparameters such as the step size come from the current settings."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, name = key.split(".", maxsplit=1)
        state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _random_state() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _restore_random_state(states: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
