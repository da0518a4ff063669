"""Keeps gradient steps in proportion to environment steps."""

from __future__ import annotations

import math
from typing import NamedTuple


class TableCount(NamedTuple):
    """Row counts of a table: rows ever inserted, and live rows."""

    inserted: int
    size: int


class Pacer:
    """Counts rows in the table as environment steps, and decides whether the learner and the actors may proceed.

    Once the table has ``learning_starts`` rows, each environment step gives the learner a credit of ``ratio`` gradient
    steps, however often the table is polled. The learner takes a gradient step for each whole credit. Actors pause
    while the learner's unused whole credits correspond to more than ``lead_steps`` environment steps. So actors cannot
    flood a slow learner, and a fast learner does not overfit to few rows. Actors never pause while the learner has too
    little credit or too few rows for a gradient step, because it then needs their rows.

    Learning also waits until a step can be drawn. The table contains additional rows that close episodes. These are not
    environment steps, so the pacer subtracts each of them when its episode is reported.

    Rows of actors that died before they reported are counted, too. The trainer's own steps are counted immediately,
    because its rows take a while to arrive. Any thread may read `goal`; only one thread may call everything else.
    """

    def __init__(self, ratio: float, learning_starts: int, lead_steps: int) -> None:
        """Start at step 0, with an empty table. The arguments are settings of the run."""
        self._ratio = ratio
        self._learning_starts = learning_starts
        self._lead_steps = lead_steps
        self.env_steps = 0
        """Environment steps so far, over all actors and all tables."""
        # Computed from integers, because sums of fractions would drift.
        self._credited_steps = self._updates = 0
        self._credit_before = 0.0
        self.can_draw = False
        """Whether the table has anything to draw, once it has enough rows."""
        self.attach(inserted=0, size=0)

    @property
    def has_rows(self) -> bool:
        """Whether the table has enough rows."""
        return self._size_at_start + self._steps_since_start >= self._learning_starts

    @property
    def owes_update(self) -> bool:
        """Whether a gradient step is due and possible."""
        return self.credit >= 1.0 and self.has_rows and self.can_draw

    @property
    def credit(self) -> float:
        """Gradient steps that are due."""
        return self._credit_before + self._credited_steps * self._ratio - self._updates

    @property
    def goal(self) -> int:
        """Rows ever inserted into the table at which actors pause: the present number, and what is left of the lead."""
        ahead = math.floor(self.credit) / self._ratio if self.owes_update else 0.0
        return self.table_count.inserted + self._lead_steps - math.ceil(ahead)

    @property
    def table_count(self) -> TableCount:
        """The table's row counts, computed from the steps counted so far."""
        rows = self._steps_since_start + self._closing_rows
        return TableCount(self._inserted_at_start + rows, self._size_at_start + rows)

    def restart(self, env_steps: int, credit: float) -> None:
        """Continue from the counts of an earlier start of the run. New rows of the attached table add to them."""
        self.env_steps = self._steps_before = env_steps
        self._credit_before = credit
        self._credited_steps = self._updates = 0

    def catch_up(self, counted: TableCount, inserted: int, size: int, closing_share: float = 0.0) -> None:
        """Count the rows that the attached table has received since an earlier start of the run last counted them.

        It is unknown how many of these rows close an episode. Their number is estimated from ``closing_share``, the
        fraction of the live rows that do. ``counted`` is the last `table_count` of the earlier start.
        """
        # `counted` may include steps that never became rows in the table, because they were incomplete or not sent.
        self.attach(min(counted.inserted, inserted), counted.size)
        self._closing_rows = round((inserted - self._inserted_at_start) * closing_share)
        self.observe_inserted(inserted)
        self.attach(inserted, size)

    def attach(self, inserted: int, size: int) -> None:
        """Start counting from a table's row counts. The table may be a new one, or the one counted so far."""
        self._inserted_at_start = inserted
        self._size_at_start = size
        self._steps_before = self.env_steps
        self._own_steps = 0
        self._inserted = 0
        self._closing_rows = 0

    def count_own_steps(self, count: int) -> None:
        """Count environment steps of the trainer."""
        self._own_steps += count
        self._advance()

    def count_closing_row(self) -> None:
        """Count a row of the table that closes an episode."""
        self._closing_rows += 1

    def observe_inserted(self, inserted: int) -> None:
        """Update the number of rows ever inserted into the table."""
        self._inserted = max(self._inserted, inserted - self._inserted_at_start)
        self._advance()

    def count_update(self) -> None:
        """Count a gradient step."""
        self._updates += 1

    @property
    def _steps_since_start(self) -> int:
        return max(self._own_steps, self._inserted - self._closing_rows)

    def _advance(self) -> None:
        now = self._steps_before + self._steps_since_start
        # Steps taken before the table had enough rows add no credit.
        last_without_credit = self._steps_before + self._learning_starts - self._size_at_start - 1
        self._credited_steps += max(0, now - max(self.env_steps, last_without_credit))
        # Closing rows of other actors are counted as steps until their episodes are reported.
        self.env_steps = max(self.env_steps, now)
