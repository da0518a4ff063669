"""Where networks run."""

from __future__ import annotations

import pytest
from replay_agent.dqn.networks import NetworkKind
from replay_agent.training.devices import gpus_to_reserve


@pytest.mark.parametrize(
    ("wanted", "kind", "there", "reserved"),
    [
        ("auto", NetworkKind.CONV, 2.0, 1.0),
        ("auto", NetworkKind.CONV, 0.0, 0.0),
        ("auto", NetworkKind.MLP, 2.0, 0.0),
        ("cuda", NetworkKind.MLP, 0.0, 1.0),
        ("cpu", NetworkKind.CONV, 2.0, 0.0),
    ],
)
def test_a_gpu_is_reserved_where_the_networks_are_faster_on_it(
    wanted: str, kind: NetworkKind, there: float, reserved: float
) -> None:
    assert gpus_to_reserve(wanted, kind, there) == reserved
