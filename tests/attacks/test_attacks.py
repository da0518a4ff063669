"""Every attack, short: nobody else feels it, and it does not get what it is after."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.attacks.arena import Arena
from tests.attacks.attack import Attack, Setup
from tests.attacks.runner import GROUPS, carry_out, open_arena

SECONDS = 0.7
EVERY = [kind for kinds in GROUPS.values() for kind in kinds]
SHARED = (Setup(), Setup(has_learner=True))
"""Servers that several attacks are made on, one after another."""


@pytest.fixture(scope="module")
def arena_for() -> Iterator[Callable[[Setup], Arena]]:
    """Servers for those attacks that need none of their own."""
    open_now: dict[Setup, Arena] = {}

    def find(setup: Setup) -> Arena:
        if setup not in open_now:
            open_now[setup] = open_arena(setup)
        return open_now[setup]

    yield find
    for arena in open_now.values():
        arena.close()


@pytest.mark.parametrize("kind", [kind for kind in EVERY if kind.setup in SHARED], ids=lambda kind: kind.__name__)
def test_an_attack_has_no_effect(arena_for: Callable[[Setup], Arena], kind: type[Attack]) -> None:
    outcome = carry_out(kind(), arena_for(kind.setup), SECONDS)
    assert not (faults := [*outcome.faults(None)]), "\n".join(faults)


@pytest.mark.parametrize("kind", [kind for kind in EVERY if kind.setup not in SHARED], ids=lambda kind: kind.__name__)
def test_an_attack_on_a_server_of_its_own_has_no_effect(kind: type[Attack]) -> None:
    arena = open_arena(kind.setup)
    try:
        outcome = carry_out(kind(), arena, SECONDS)
    finally:
        arena.close()
    assert not (faults := [*outcome.faults(None)]), "\n".join(faults)
