"""Tensors that pretend to be on another device, and record which threads waited for them."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray


class FarTensor(torch.Tensor):
    """On the CPU, but says that it is not."""

    seen_by: ClassVar[set[str]] = set()
    """Names of the threads in which one was brought to the CPU."""

    @classmethod
    def of(cls, tensor: torch.Tensor) -> FarTensor:
        """The same numbers at distant addresses."""
        return tensor.detach().as_subclass(cls)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Another place."""
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
