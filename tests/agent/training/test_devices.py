"""Where networks run."""

from __future__ import annotations

import pytest
from replay_agent.training.devices import gpus_to_reserve


@pytest.mark.parametrize(
    ("wanted", "for_images", "there", "reserved"),
    [
        ("auto", True, 2.0, 1.0),
        ("auto", True, 0.0, 0.0),
        ("auto", False, 2.0, 0.0),
        ("cuda", False, 0.0, 1.0),
        ("cpu", True, 2.0, 0.0),
    ],
)
def test_a_gpu_is_reserved_where_the_networks_are_faster_on_it(
    wanted: str, for_images: bool, there: float, reserved: float
) -> None:
    assert gpus_to_reserve(wanted, there, for_images=for_images) == reserved
