"""Writes and reads checkpoints: directories with tensors in safetensors format and all other state as JSON.

A checkpoint is written under a temporary name and then renamed, so every checkpoint with a final name is complete. An
earlier checkpoint of the same step is renamed, not removed, until the new one has its name: a run can be killed at any
time, and always has a complete checkpoint. All its numbers are finite; this is checked when it is written and again
when it is read.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim import Optimizer

from replay_agent.dqn.divergence import all_finite, require_finite
from replay_agent.dqn.learner import Learner

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
PREFIX = "step-"
PARTIAL_SUFFIX = ".partial"
# Suffix of a checkpoint while another one of the same step takes its name.
REPLACED_SUFFIX = ".replaced"
# Suffix of an unusable checkpoint, which is kept for diagnosis but never loaded again.
UNUSABLE_SUFFIX = ".unusable"
STATE_FILE = "state.json"
TENSOR_SUFFIX = ".safetensors"
PARTS = frozenset({"online", "target", "optimizer", "random"})
"""Files of tensors in every checkpoint; ``best`` is optional."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read, or does not fit the run."""


class Checkpoint(NamedTuple):
    """The parts of a checkpoint other than the learner, as passed to `save_checkpoint`."""

    state: dict[str, Any]
    best_weights: dict[str, Tensor] | None


def save_checkpoint(
    directory: Path,
    step: int,
    learner: Learner[Any, Any],
    state: Mapping[str, Any],
    best_weights: Mapping[str, Tensor] | None,
    keep: int,
) -> Path:
    """Write a checkpoint, and remove all but the newest ``keep`` checkpoints.

    Args:
        directory: directory of all checkpoints of the run.
        step: environment steps so far, for the checkpoint's name.
        learner: the learner whose networks, optimizer and number of updates are saved, with torch's random generators.
        state: additional JSON values to save.
        best_weights: tensors of the best network so far; None if there is none.
        keep: number of checkpoints to keep, including this one.

    Raises:
        DivergedError: a number in the learner is not finite; nothing was written or removed.
    """
    require_finite(learner)
    final = directory / f"{PREFIX}{step:012d}"
    partial = final.with_suffix(PARTIAL_SUFFIX)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    parts = {
        "online": learner.online.state_dict(),
        "target": learner.target.state_dict(),
        "optimizer": _optimizer_tensors(learner.optimizer),
        "random": _random_state(),
    }
    if best_weights is not None:
        parts["best"] = dict(best_weights)
    for name, tensors in parts.items():
        # Copies, because safetensors refuses tensors that share memory, such as those of a layer that is used twice.
        on_cpu = {
            key: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for key, tensor in tensors.items()
        }
        save_file(on_cpu, (partial / name).with_suffix(TENSOR_SUFFIX))
    document = {"format": FORMAT_VERSION, "updates": learner.updates, "run": dict(state)}
    (partial / STATE_FILE).write_text(json.dumps(document, allow_nan=False))
    replaced = final.with_suffix(REPLACED_SUFFIX)
    if final.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
    partial.rename(final)
    shutil.rmtree(replaced, ignore_errors=True)
    for old in checkpoints(directory)[:-keep]:
        shutil.rmtree(old)
    return final


def checkpoints(directory: Path) -> list[Path]:
    """Return all complete checkpoints, oldest first. One that was replaced may be damaged if its successor is there."""
    found = directory.glob(f"{PREFIX}*") if directory.is_dir() else []
    complete = (path for path in found if path.suffix not in (PARTIAL_SUFFIX, UNUSABLE_SUFFIX))
    return sorted(complete, key=lambda path: (path.stem, path.suffix != REPLACED_SUFFIX))


def load_latest(directory: Path, learner: Learner[Any, Any]) -> Checkpoint:
    """Restore the learner and torch's random generators from the newest usable checkpoint.

    Newer checkpoints that are corrupt or contain non-finite numbers are logged and renamed.

    Raises:
        CheckpointError: there is no usable checkpoint, or it does not match this learner.
    """
    found = checkpoints(directory)
    if not found:
        raise CheckpointError(f"no checkpoint in {directory}: the run ended before its first one, start it again")
    unusable: dict[Path, str] = {}
    for path in reversed(found):
        try:
            document, tensors = _read(path)
        except _UnusableError as error:
            unusable[path] = str(error)
            continue
        _apply(document["updates"], tensors, path, learner)
        for other, reason in unusable.items():
            log.warning("%s is unusable (%s): it is set aside, loading %s", other, reason, path.name)
            other.rename(other.with_suffix(UNUSABLE_SUFFIX))
        return Checkpoint(document["run"], tensors.get("best"))
    reasons = "; ".join(f"{path.name}: {reason}" for path, reason in unusable.items())
    raise CheckpointError(f"no checkpoint in {directory} is usable, start the run again: {reasons}")


class _UnusableError(Exception):
    """A checkpoint is corrupt, or contains non-finite numbers."""


def _read(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """Read a whole checkpoint before any of it is used; return its JSON document and its tensors by part."""
    try:
        document = json.loads((path / STATE_FILE).read_text())
        if document["format"] != FORMAT_VERSION:
            raise CheckpointError(f"{path} has format {document['format']}, expected {FORMAT_VERSION}")
        names = PARTS | {file.stem for file in path.glob(f"*{TENSOR_SUFFIX}")}
        tensors = {name: load_file((path / name).with_suffix(TENSOR_SUFFIX)) for name in sorted(names)}
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise _UnusableError(f"damaged: {type(error).__name__}: {error}") from error
    wrong = [name + TENSOR_SUFFIX for name, part in tensors.items() if not all_finite(part.values())]
    if wrong:
        raise _UnusableError(f"not finite: {', '.join(wrong)}")
    return document, tensors


def _apply(updates: int, tensors: Mapping[str, Mapping[str, Tensor]], path: Path, learner: Learner[Any, Any]) -> None:
    try:
        learner.online.load_state_dict(tensors["online"])
        learner.target.load_state_dict(tensors["target"])
    except RuntimeError as error:
        raise CheckpointError(
            f"{path} contains a different network from the settings; resume with the same "
            f"--env, --algorithm, --hidden-sizes, --lstm-units and --dueling: {error}"
        ) from error
    _restore_optimizer(learner.optimizer, tensors["optimizer"])
    learner.updates = updates
    _restore_random_state(tensors["random"])


def _optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's tensors by ``index.name``, where the index identifies a parameter."""
    return {
        f"{index}.{name}": value
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
