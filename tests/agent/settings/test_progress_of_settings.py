"""With all accepted settings, a run ends: simulates the trainer's loop and its actors, without networks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from replay_agent.acting.environments import EnvironmentInfo
from replay_agent.dqn.networks import Bounds
from replay_agent.replay.pacing import Pacer
from replay_agent.replay.run_table import check_table
from replay_agent.settings.train_settings import TrainSettings

MAX_STEPS = 60


@dataclass(eq=False)
class Steps:
    """Steps of an environment whose episodes never end, so the last ``n_step`` steps are never complete."""

    n_step: int
    taken: int = 0


@dataclass
class SimulatedRun:
    """The loop of `TrainingLoop.train`, with a table that only knows whose step a row is."""

    settings: TrainSettings
    inserted: int = 0
    updates: int = 0
    actors: list[Steps] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = self.settings
        self.pacer = Pacer(settings.replay_ratio, settings.learning_starts, settings.lead_steps)
        self.own = Steps(settings.n_step) if settings.acts else None
        self.actors = [Steps(settings.n_step) for _ in range(settings.actors)]
        self.live: deque[tuple[Steps, int]] = deque(maxlen=settings.capacity)

    def take(self, actor: Steps) -> None:
        """Take an environment step."""
        actor.taken += 1
        self.inserted += 1
        self.live.append((actor, actor.taken))

    @property
    def can_draw(self) -> bool:
        return any(step + actor.n_step <= actor.taken for actor, step in self.live)

    def turn(self) -> None:
        for actor in self.actors:
            if self.inserted < self.pacer.goal:
                self.take(actor)
        if self.own is not None and not self.pacer.owes_update:
            self.take(self.own)
            self.pacer.count_own_steps(1)
        if self.pacer.has_rows and not self.pacer.can_draw:
            self.pacer.can_draw = self.can_draw
        if self.pacer.owes_update:
            assert self.can_draw, "a batch is drawn from an empty table, which waits for rows that nobody brings"
            self.pacer.observe_inserted(self.inserted)
            self.pacer.count_update()
            self.updates += 1
        elif self.own is None:
            self.pacer.observe_inserted(self.inserted)

    def play(self) -> None:
        """Continue until the run ends.

        Raises:
            AssertionError: the run does not end.
        """
        turns = 0
        while self.pacer.env_steps < self.settings.steps:
            self.turn()
            turns += 1
            # In each turn, it takes an environment step or a gradient step, or waits for n-step rows to be complete.
            most = (MAX_STEPS + self.settings.n_step) * (2 + self.settings.replay_ratio)
            assert turns <= most, f"stuck at step {self.pacer.env_steps} with credit {self.pacer.credit}"


SMALL = st.integers(1, 12)
SETTINGS = st.fixed_dictionaries(
    {
        "steps": st.integers(1, MAX_STEPS),
        "capacity": SMALL,
        "learning_starts": SMALL,
        "lead_steps": SMALL,
        "n_step": st.integers(1, 6),
        "batch_size": SMALL,
        "prefetch": st.integers(1, 4),
        "actors": st.integers(0, 2),
        "act": st.booleans(),
        "replay_ratio": st.sampled_from([0.01, 0.1, 0.25, 0.3, 0.5, 0.9, 1.0, 2.0, 7.5]),
    }
).filter(lambda values: values["actors"] or values["act"])  # otherwise it would wait for actors on other machines
STUCK_ONCE = {
    "steps": 60,
    "capacity": 12,
    "learning_starts": 1,
    "lead_steps": 1,
    "n_step": 1,
    "batch_size": 1,
    "prefetch": 1,
    "actors": 1,
    "act": False,
    "replay_ratio": 0.25,
}
ENV = EnvironmentInfo("Endless-v0", (4,), "float32", Bounds((), ()), actions=2, first_action=0)


def names_fields(refusal: ValueError, values: dict[str, Any]) -> None:
    assert any(f"{name} {value}" in str(refusal) for name, value in values.items())


@given(SETTINGS)
@example(STUCK_ONCE)
@example({**STUCK_ONCE, "actors": 0, "act": True, "n_step": 3})
def test_settings_are_refused_or_get_a_run_to_its_end(values: dict[str, Any]) -> None:
    try:
        settings = TrainSettings(**values)
        check_table(settings, ENV)
    except ValueError as refusal:
        event("refused")
        names_fields(refusal, values)
        return
    event("played")
    run = SimulatedRun(settings)
    run.play()
    credited = max(0, run.pacer.env_steps - settings.learning_starts + 1)
    assert run.updates == pytest.approx(credited * settings.replay_ratio - run.pacer.credit)
    assert run.updates >= 1 or run.pacer.credit >= 1
