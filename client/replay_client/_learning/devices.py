"""Checks the device of a sampler's tensors; loads torch only if there is a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay_client._extras import check_extra

if TYPE_CHECKING:
    from replay_client._learning.tensors import Device


def check_device(device: Device | None) -> None:
    """Check that torch is installed and can use a device. With None, check nothing, because torch is not needed.

    Raises:
        MissingExtraError: torch is not installed.
        InvalidArgumentError: the device is unknown, or not available here.
    """
    if device is None:
        return
    check_extra("agent", "torch")
    from replay_client._learning.tensors import check_usable

    check_usable(device)
