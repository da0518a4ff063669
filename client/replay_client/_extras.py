"""Checks that libraries of optional parts are installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from replay_client.errors import InvalidArgumentError, MissingExtraError

if TYPE_CHECKING:
    from replay_client._learning.tensors import Device


def check_extra(extra: str, *modules: str) -> None:
    """Check that the modules of an extra are installed, without loading them.

    Raises:
        MissingExtraError: modules are missing; the message says how to install them.
    """
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise MissingExtraError(f"{', '.join(missing)} not installed; in a clone, run: pip install '.[{extra}]'")


def check_device(device: Device | None) -> None:
    """Check that torch is installed and can use a device; None: torch is not needed.

    Raises:
        MissingExtraError: torch is not installed.
        InvalidArgumentError: the device is unknown, or not available here.
    """
    if device is None:
        return
    check_extra("agent", "torch")
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, TypeError, AssertionError) as error:  # AssertionError: torch without CUDA
        got = f"{device!r}: {str(error).partition(chr(10))[0]}"
        raise InvalidArgumentError.of_field("device", "a device that torch can use here, such as 'cpu'", got) from error
