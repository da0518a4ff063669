"""Keeps gradient steps in proportion to environment steps."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass


@dataclass(frozen=True)
class TableCount:
    """Row counts of a table.

    Attributes:
        inserted: rows that it ever received.
        size: rows that it has, or had before it was full.
    """

    inserted: int
    size: int


class Pacer:
    """Counts environment steps by what the table received, and decides who may proceed: the learner or the actors.

    Every environment step brings a credit of ``ratio`` gradient steps, from the one on that brings the table's row
    number ``learning_starts``, however seldom the table is looked at.
    The learner takes a step for each whole credit; actors are held while its unused whole credits are worth more than
    ``lead_steps`` environment steps. So a slow learner is not flooded, and a fast one does not overfit to few rows.
    Actors are never held while the learner cannot take a step: then the run depends on their rows.

    The table's count is authoritative, for rows of actors that died unheard are in it. The trainer's own steps are
    counted as they are taken, because its rows travel for a while. Steps granted to actors count against the lead until
    the table has been looked at again. `grant` may be called from any thread, everything else from one.
    """

    def __init__(self, ratio: float, learning_starts: int, lead_steps: int) -> None:
        """Start at step 0, with an empty table.

        Args:
            ratio: gradient steps per environment step.
            learning_starts: rows in the table before the first gradient step.
            lead_steps: environment steps that actors may be ahead.
        """
        self._ratio = ratio
        self._learning_starts = learning_starts
        self._lead_steps = lead_steps
        self._env_steps = 0
        # Credit is computed from whole numbers: sums of fractions would drift.
        self._credited_steps = self._updates = 0
        self._credit_before = 0.0
        self._lock = threading.Lock()
        self.attach(inserted=0, size=0)

    @property
    def env_steps(self) -> int:
        """Environment steps so far, over all actors and all tables."""
        return self._env_steps

    @property
    def may_learn(self) -> bool:
        """Whether the table has enough rows."""
        return self._size_at_start + self._steps_since_start >= self._learning_starts

    @property
    def owes_update(self) -> bool:
        """Whether a gradient step is due, and there are rows to take it with."""
        return self.credit >= 1.0 and self.may_learn

    @property
    def credit(self) -> float:
        """Gradient steps that are due."""
        return self._credit_before + self._credited_steps * self._ratio - self._updates

    @property
    def table_count(self) -> TableCount:
        """How far the table is by the steps counted so far."""
        steps = self._steps_since_start
        return TableCount(self._inserted_at_start + steps, self._size_at_start + steps)

    def restart(self, env_steps: int, credit: float) -> None:
        """Go on with the counts of an earlier run; the table stays as it was attached."""
        self._env_steps = self._steps_before = env_steps
        self._credit_before = credit
        self._credited_steps = self._updates = 0

    def catch_up(self, counted: TableCount, inserted: int, size: int) -> None:
        """Count the rows that the attached table received after an earlier run last counted them.

        Args:
            counted: `table_count` of that run.
            inserted: rows that the table ever received.
            size: rows that it has.
        """
        # Steps whose rows were not complete, or not sent, are counted although the table never got them.
        self.attach(min(counted.inserted, inserted), counted.size)
        self.observe_inserted(inserted)
        self.attach(inserted, size)

    def grant(self, steps: int) -> int:
        """How many of the ``steps`` that an actor asks for it may take: all, or none while actors are ahead."""
        with self._lock:
            ahead = math.floor(self.credit) / self._ratio if self.owes_update else 0.0
            if ahead + self._granted > self._lead_steps:
                return 0
            self._granted += steps
            return steps

    def attach(self, inserted: int, size: int) -> None:
        """Count from here on by another table, or the same one after a while.

        Args:
            inserted: rows that it ever received.
            size: rows that it has.
        """
        self._inserted_at_start = inserted
        self._size_at_start = size
        self._steps_before = self._env_steps
        self._own_steps = 0
        self._inserted = 0
        self._granted = 0

    def count_own_step(self) -> None:
        """The trainer took an environment step."""
        self._own_steps += 1
        self._advance()

    def observe_inserted(self, inserted: int) -> None:
        """The table has received ``inserted`` rows in its life."""
        with self._lock:
            self._granted = 0
        self._inserted = max(self._inserted, inserted - self._inserted_at_start)
        self._advance()

    def count_update(self) -> None:
        """The learner took a gradient step."""
        self._updates += 1

    @property
    def _steps_since_start(self) -> int:
        return max(self._own_steps, self._inserted)

    def _advance(self) -> None:
        now = self._steps_before + self._steps_since_start
        # Several steps may be seen at once: those before the table had enough rows bring no credit.
        last_without_credit = self._steps_before + self._learning_starts - self._size_at_start - 1
        self._credited_steps += max(0, now - max(self._env_steps, last_without_credit))
        self._env_steps = now
