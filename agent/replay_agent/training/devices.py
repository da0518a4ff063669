"""Chooses the device of networks, and the number of torch's CPU threads."""

from __future__ import annotations

import torch


def choose_device(wanted: str, *, for_images: bool) -> torch.device:
    """Choose the device of the trainer's networks.

    Small dense networks are faster on the CPU: a GPU would have to launch a dozen tiny kernels per step.

    Args:
        wanted: ``auto``, ``cpu`` or ``cuda``.
        for_images: whether the networks are convolutional.

    Raises:
        ValueError: ``cuda`` was requested but is not available.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device here; use --device cpu, or a torch with CUDA")
    if wanted == "auto":
        wanted = "cuda" if for_images and torch.cuda.is_available() else "cpu"
    return torch.device(wanted)


def gpus_to_reserve(wanted: str, there: float, *, for_images: bool) -> float:
    """Return how many GPUs to reserve for the trainer's networks where processes get only what they reserve.

    ``there`` is the number of GPUs of all machines together; the other arguments are those of `choose_device`.
    """
    is_faster = wanted == "auto" and for_images and there >= 1
    return 1.0 if wanted == "cuda" or is_faster else 0.0


def limit_threads(wanted: int | None, *, for_images: bool) -> None:
    """Set the number of torch's CPU threads.

    By default, dense networks use one thread. More threads would slow small networks down, and the replay server needs
    a core. For images, the default is torch's own choice.
    """
    if wanted is None and not for_images:
        wanted = 1
    if wanted is not None:
        torch.set_num_threads(wanted)
