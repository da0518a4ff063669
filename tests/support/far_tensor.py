"""Tensors that pretend to be on another device, and record which threads waited for them."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray


class FarTensor(torch.Tensor):
    """A CPU tensor that claims to be on another device."""

    seen_by: ClassVar[set[str]] = set()
    """Names of the threads in which such a tensor was copied to the CPU."""

    @classmethod
    def of(cls, tensor: torch.Tensor) -> FarTensor:
        """Wrap a tensor."""
        return tensor.detach().as_subclass(cls)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Pretend to be on another device."""
        return torch.device("xpu")

    def cpu(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Wait, and record the waiting thread."""
        self.seen_by.add(threading.current_thread().name)
        return self.as_subclass(torch.Tensor)

    def numpy(self, *, force: bool = False) -> NDArray[Any]:
        """As `cpu`."""
        found: NDArray[Any] = self.cpu().numpy()
        return found

    def __array__(self, dtype: Any = None) -> NDArray[Any]:
        """As `cpu`."""
        return np.asarray(self.numpy(), dtype)
