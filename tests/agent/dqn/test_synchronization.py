"""How often the training thread waits for the device, counted with fake device tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from replay_agent.dqn.double_dqn import DoubleDQN, TransitionBatch
from replay_agent.dqn.learner import UpdateResult
from replay_agent.processes.signals import StopRequest
from replay_agent.reporting.progress import ProgressView, Status
from replay_agent.training.training_loop import Ending, TrainingLoop
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.far_tensor import FarTensor

UPDATES = 150
# Methods of tensors that wait for all earlier work on the device.
WAITING_METHODS = {
    *("cpu", "numpy", "tolist", "item", "__array__"),
    *("__bool__", "__int__", "__float__", "__index__", "__contains__"),
}
WAITING_OPERATIONS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal"}


class CalledMethods(TorchFunctionMode):
    """Counts calls of waiting methods, in the thread that entered this mode."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in WAITING_METHODS:
            self.calls.append(name)
        return func(*args, **(kwargs or {}))


class RunOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts waiting operations that our code does not call explicitly, such as those inside optimizers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.name().split(".")[0] in WAITING_OPERATIONS:
            self.calls.append(func.name())
        return func(*args, **(kwargs or {}))


class CountingView(ProgressView):
    """Shows a run, and counts the waits for the device between two calls of `show`."""

    def __init__(self, stop: StopRequest) -> None:
        self.methods, self.operations = CalledMethods(), RunOperations()
        self.updates = self.shows = 0
        self.is_counting = False
        self._stop = stop
        self._counting = ExitStack()
        self._first = 0

    def show(self, status: Status) -> None:
        if self.is_counting:
            self.shows += 1
            self.updates = status.updates - self._first
            if self.updates >= UPDATES:
                self._counting.close()
                self.is_counting = False
                self._stop.set()
        elif status.updates and not self.updates:
            self._first = status.updates
            self.is_counting = True
            self._counting.enter_context(self.methods)
            self._counting.enter_context(self.operations)


def test_gradient_steps_wait_for_the_device_only_where_figures_are_shown(
    make_trainer: Callable[..., TrainingLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    update = DoubleDQN.update

    def update_far_away(learner: DoubleDQN, batch: TransitionBatch) -> UpdateResult:
        """Return priorities that seem to be on another device than the CPU."""
        result = update(learner, batch)
        return UpdateResult(FarTensor.of(result.priorities), result.loss, result.grad_norm, result.mean_value)

    monkeypatch.setattr(DoubleDQN, "update", update_far_away)
    stop = StopRequest()
    view = CountingView(stop)
    trainer = make_trainer(
        stop,
        steps=10_000_000,
        replay_ratio=1.0,
        publish_interval=10,
        validate_interval=10_000_000,
        log_interval_s=1e9,  # figures are fetched for logs, too
        epsilon_start=1.0,  # acting greedily would wait for the network's values, which is not a wait of the learner
        epsilon_end=1.0,
    )
    FarTensor.seen_by.clear()
    assert trainer.train(view, None) is Ending.STOPPED
    assert view.updates >= UPDATES
    assert view.operations.calls == []
    # Each time, figures are fetched with a single wait.
    assert view.methods.calls == ["tolist"] * view.shows
    # Only the sampler's thread read priorities.
    assert FarTensor.seen_by
    assert threading.current_thread().name not in FarTensor.seen_by
