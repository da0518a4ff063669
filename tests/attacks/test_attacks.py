"""Short runs of every attack: others are unaffected, and the attack fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.attacks.arena import Arena
from tools.attacks.attack import Attack, Setup
from tools.attacks.runner import GROUPS, carry_out

SECONDS = 0.35
EVERY = [kind for kinds in GROUPS.values() for kind in kinds]
OF_SERVERS = [kind for kind in EVERY if kind.setup == Setup()]
ON_THEIR_OWN = [kind for kind in EVERY if kind not in OF_SERVERS]
"""Attacks that need a server with special settings."""


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    """A server shared by the attacks that do not need a separate one."""
    opened = Arena(Setup(), is_brief=True)
    yield opened
    opened.close()


def faults_of(kind: type[Attack], arena: Arena) -> list[str]:
    return [f"{kind.__name__}: {fault}" for fault in carry_out(kind(), arena, SECONDS).faults(None)]


@pytest.mark.parametrize("kind", OF_SERVERS, ids=lambda kind: kind.__name__)
def test_an_attack_has_no_effect(arena: Arena, kind: type[Attack]) -> None:
    assert not (faults := faults_of(kind, arena)), "\n".join(faults)


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("kind", ON_THEIR_OWN, ids=lambda kind: kind.__name__)
def test_an_attack_on_a_server_of_its_own_has_no_effect(kind: type[Attack]) -> None:
    arena = Arena(kind.setup, is_brief=True)
    try:
        faults = faults_of(kind, arena)
    finally:
        arena.close()
    assert not faults, "\n".join(faults)
