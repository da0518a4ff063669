"""Signals ask a run to stop, and nohup's choice is respected."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from replay_agent.processes.signals import StopRequest


@pytest.fixture(autouse=True)
def hangup() -> Iterator[None]:
    """Nohup may have begun the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_asks_for_a_stop(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopRequest() as stop:
        signal.raise_signal(number)
        assert stop.is_set()
        assert stop.signal is number
    assert signal.getsignal(number) == before


def test_a_hangup_that_is_ignored_remains_so() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert not stop.is_set()
