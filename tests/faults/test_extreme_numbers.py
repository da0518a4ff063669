"""Extreme numbers in every numeric field of every request; see `tools.faults.extreme_numbers`."""

from __future__ import annotations

from pathlib import Path

import pytest
from replay_server.rpc.requests import _ARRAYS

from tests.support.examples import examples
from tests.support.request_fields import fields
from tools.faults.extreme_numbers import run


def test_every_array_in_a_request_has_a_type_in_the_contract() -> None:
    described = {field.path[-1].full_name for field in fields() if field.dtype}
    assert described == _ARRAYS


@pytest.mark.slow
def test_no_number_in_any_field_fails_a_call_or_the_next_start(tmp_path: Path) -> None:
    print(run(tmp_path, examples(1)))
