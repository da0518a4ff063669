"""Batches as tensors."""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from replay_client import ClosedError, InvalidArgumentError, MissingExtraError, ReplayClient, Table, TableEmptyError
from replay_client.torch import TensorSampler, to_torch

from tests.client.numbered import assert_whole, rows
from tests.support.deadlines import wait_until
from tests.support.far_tensor import FarTensor

ALL_DATA_PATHS = True


def test_tensors_hold_what_the_batch_holds(table: Table) -> None:
    table.insert(rows(range(20)))
    batch = table.sample(8, beta=0.4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensors = to_torch(batch)
    assert tensors.batch_size == 8
    assert tensors["obs"].dtype == torch.float32
    assert tensors["done"].dtype == torch.bool
    assert tensors.weights.dtype == torch.float32
    for name in batch:
        np.testing.assert_array_equal(tensors[name].numpy(), batch[name])
    np.testing.assert_array_equal(tensors.row_keys, batch.row_keys)


def test_on_the_cpu_nothing_is_copied(table: Table) -> None:
    table.insert(rows(range(20)))
    batch = table.sample(8, beta=0.4)
    tensors = to_torch(batch, torch.device("cpu"))
    tensors["obs"].zero_()
    assert not batch["obs"].any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_on_a_gpu_the_tensors_are_there(table: Table) -> None:
    table.insert(rows(range(20)))
    batch = table.sample(8, beta=0.4)
    tensors = to_torch(batch, "cuda")
    assert tensors["obs"].device.type == "cuda"
    np.testing.assert_array_equal(tensors["obs"].cpu().numpy(), batch["obs"])


def test_a_sampler_with_a_device_gives_tensors(table: Table) -> None:
    table.insert(rows(range(20)))
    with table.sampler(8, beta=0.4, prefetch=2, device="cpu") as sampler:
        for step in range(10):
            tensors = next(sampler)
            assert isinstance(tensors["obs"], torch.Tensor)
            assert_whole({name: tensor.numpy() for name, tensor in tensors.items()})
            np.testing.assert_array_equal(tensors.row_keys, tensors["number"])
            sampler.beta = step / 10
            sampler.update_priorities(tensors, torch.full((8,), 0.5))
        sampler.flush(timeout_s=10)
        assert sampler.updated >= 10
        assert sampler.stale == 0
        assert next(sampler).beta > 0.0  # it continues after a flush


@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_device_is_checked_before_a_sampler_is_created(
    client: ReplayClient, table: Table, monkeypatch: pytest.MonkeyPatch, is_mixed: bool
) -> None:
    def sample(device: str) -> object:
        return client.mixed_sampler({table.name: 4}, device=device) if is_mixed else table.sampler(4, device=device)

    monkeypatch.setattr(Table, "_part_sampler", pytest.fail)
    with pytest.raises(InvalidArgumentError, match=r"^device: expected .*, got 'cdua': "):
        sample("cdua")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"^torch not installed; .*pip install '\.\[agent\]'$"):
        sample("cpu")


def test_its_updates_are_in_force_for_the_draws_after_them(table: Table) -> None:
    table.insert(rows(range(20)), priorities=np.ones(20))
    with table.sampler(8, beta=0.4, prefetch=1, device="cpu") as sampler:
        next(sampler)
        sampler.update_priorities(np.arange(20), np.r_[np.full(19, 0.0), 5.0])
        late = [next(sampler) for _ in range(3)][-1]
    assert (late.probabilities[late.row_keys == 19] > 0.99).all()
    assert (late.row_keys == 19).sum() >= 7


@pytest.mark.parametrize("device", [None, "cpu"])
def test_arrays_handed_over_may_be_reused_at_once(table: Table, device: str | None) -> None:
    keys = table.insert(rows(range(20)))
    with table.sampler(8, beta=0.4, device=device) as sampler:
        priorities, tensor = np.full(10, 0.25), torch.full((10,), 0.75, dtype=torch.float64)
        first, second = keys[:10].copy(), keys[10:].copy()
        sampler.update_priorities(first, priorities)
        sampler.update_priorities(second, tensor)
        for array in (priorities, tensor, first, second):
            array[:] = 7
        sampler.flush(timeout_s=10)
    assert table.read(keys).priorities.tolist() == [0.25] * 10 + [0.75] * 10


def test_its_errors_come_with_the_next_batch(table: Table, client: ReplayClient) -> None:
    with table.sampler(8, beta=0.4, timeout_s=0, device="cpu") as sampler:
        with pytest.raises(TableEmptyError):
            next(sampler)
        table.insert(rows(range(20)))
        assert next(sampler).batch_size == 8
        with pytest.raises(InvalidArgumentError, match="priorities"):
            sampler.update_priorities([1], [float("nan")])
    with pytest.raises(ClosedError):
        next(sampler)


def test_its_thread_waits_for_priorities_of_another_device_in_place_of_the_caller(table: Table) -> None:
    table.insert(rows(range(20)))
    FarTensor.seen_by.clear()
    with table.sampler(8, beta=0.4, prefetch=1, device="cpu") as sampler:
        for _ in range(5):
            sampler.update_priorities(next(sampler), FarTensor.of(torch.full((8,), 0.5)))
        next(sampler)
        assert FarTensor.seen_by == {"replay-to-device"}
        sampler.update_priorities([1], FarTensor.of(torch.tensor([torch.nan])))
        with pytest.raises(InvalidArgumentError, match="priorities: expected finite numbers"):
            [next(sampler) for _ in range(3)]
        assert next(sampler).batch_size == 8


class StillComputed(FarTensor):
    """A tensor whose values arrive once its sampler is being closed."""

    sampler: ClassVar[TensorSampler]
    is_awaited: ClassVar[bool] = False

    def cpu(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Wait until the sampler is being closed."""
        StillComputed.is_awaited = True
        wait_until(lambda: self.sampler._ahead._is_paused, "the sampler is being closed")
        return self.as_subclass(torch.Tensor)


def test_an_update_that_a_device_still_computes_is_sent_at_the_end(table: Table) -> None:
    table.insert(rows(range(20)))
    with table.sampler(8, beta=0.4, prefetch=1, device="cpu") as sampler:
        StillComputed.sampler, StillComputed.is_awaited = sampler, False
        keys = next(sampler).row_keys
        wait_until(lambda: bool(sampler._ahead._ready), "the thread has fetched the next batch")
        sampler.update_priorities(keys, StillComputed.of(torch.full((8,), 0.25)))
        next(sampler)
        wait_until(lambda: StillComputed.is_awaited, "the thread waits for the priorities")
    assert table.read(keys).priorities.tolist() == [0.25] * 8


def test_its_thread_ends_with_it(table: Table) -> None:
    table.insert(rows(range(20)))
    sampler = table.sampler(8, beta=0.4, device="cpu")
    next(sampler)
    assert "replay-to-device" in {thread.name for thread in threading.enumerate()}
    sampler.close()
    sampler.close()
    assert "replay-to-device" not in {thread.name for thread in threading.enumerate()}


FOR_TENSOR_SAMPLERS = {"keys_of", "request", "cancel", "deadline", "unacknowledged"}
"""Members of a sampler for the sampler that wraps it."""


def test_it_has_all_that_a_sampler_of_arrays_has(table: Table) -> None:
    with table.sampler(8, beta=0.4) as arrays, table.sampler(8, beta=0.4, device="cpu") as tensors:
        for name in {name for name in dir(arrays) if not name.startswith("_")} - FOR_TENSOR_SAMPLERS:
            of_arrays = getattr(type(arrays), name, None)
            if callable(of_arrays):
                assert signature(getattr(type(tensors), name)) == signature(of_arrays)
                continue
            assert getattr(tensors, name) == getattr(arrays, name)
            if getattr(of_arrays, "fset", None) is not None:
                setattr(tensors, name, getattr(arrays, name) + 1)
                assert getattr(tensors, name) == getattr(arrays, name) + 1


def signature(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Names, kinds and defaults of a function's parameters."""
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


def test_its_prefetch_may_be_set_and_is_seen_in_what_is_in_flight(table: Table) -> None:
    table.insert(rows(range(20)))
    with table.sampler(8, beta=0.4, prefetch=1, device="cpu") as sampler:
        assert sampler.in_flight == 0
        sampler.prefetch = 5
        next(sampler)
        wait_until(lambda: sampler.in_flight == 5, "four batches are on their way, and one is on the device")
        with pytest.raises(InvalidArgumentError, match=r"prefetch: expected a whole number from 1 .* got 0"):
            sampler.prefetch = 0
        sampler.flush(timeout_s=10)
        assert sampler.in_flight == 5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_priorities_on_the_gpu_are_not_waited_for(table: Table) -> None:
    keys = table.insert(rows(range(20)))
    with table.sampler(8, beta=0.4, device="cuda") as sampler:
        next(sampler)
        torch.cuda._sleep(1_000_000_000)  # type: ignore[no-untyped-call]
        priorities = torch.full((20,), 0.25, device="cuda", requires_grad=True)
        sampler.update_priorities(keys, priorities)
        assert not torch.cuda.current_stream().query()
        with torch.no_grad():
            priorities.fill_(7)
        sampler.flush(timeout_s=30)
        assert set(table.read(keys).priorities.tolist()) == {0.25}
        sampler.update_priorities(keys, -priorities)
        with pytest.raises(InvalidArgumentError, match=r"abs\(td_errors\)"):
            sampler.flush(timeout_s=30)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_sampler_puts_batches_on_a_gpu(table: Table) -> None:
    table.insert(rows(range(20)))
    with table.sampler(8, beta=0.4, device="cuda") as sampler:
        for _ in range(5):
            tensors = next(sampler)
            assert tensors["obs"].device.type == "cuda"
            assert_whole({name: tensor.cpu().numpy() for name, tensor in tensors.items()})
            sampler.update_priorities(tensors, tensors.weights)


def test_an_update_before_the_end_is_sent(table: Table) -> None:
    keys = table.insert(rows(range(20)))
    with table.sampler(8, beta=0.4, prefetch=1, device="cpu") as sampler:
        next(sampler)
        sampler.flush(timeout_s=10)
        sampler.update_priorities(keys, np.full(20, 0.25))  # It is sent with the next call.
    assert table.read(keys).priorities.tolist() == [0.25] * 20
