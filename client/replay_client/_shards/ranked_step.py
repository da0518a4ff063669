"""Draws one batch of a distributed table by rank, exactly, without I/O (Schaul et al. 2016, equation 1).

The rank R of a row in the whole table is not known to its shard, so the batch is drawn by rejection, in rounds of three
phases:

1. Propose: for each row, choose a shard s with probability q_s, and draw a row of that shard by its rank r there.
2. Count: ask the other shards how many of their rows outrank each proposed row, which gives R. Among rows with equal
   priorities, those of the shard with the smaller id rank first.
3. Fetch: accept each row with the probability (r / R) ** alpha, which is at most 1, and fetch as many as are missing.

A row of shard s is proposed with the probability q_s * r ** -alpha / M_s, where M_s is the mass of the shard. If
q_s / M_s is the same for all shards, rows are thus accepted in proportion to R ** -alpha. If masses have changed since
q was computed, the ratio differs between shards. A second rejection then compensates for ratios that are too large.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray
from replay_proto.v1 import replay_pb2

from replay_client._shards.mass import rows_by_shard
from replay_client._shards.power_sums import power_sum
from replay_client._shards.step import Part, Step
from replay_client.batch import Batch

_LEAST_PROBABILITY: Final = float(np.finfo(np.float64).tiny)
"""Lower limit of reported probabilities, as in the server: weights of smaller ones would overflow."""
_SPREADS: Final = 3.0
"""Safety margin of the number of proposals, in standard deviations: 1 round in 700 accepts too few rows."""


class Phase(IntEnum):
    """What a step waits for."""

    PROPOSE = 0
    COUNT = 1
    FETCH = 2
    COMPLETE = 3


@dataclass(eq=False)
class Question:
    """A step's question to one shard. A message may contain several questions."""

    step: RankedStep
    draws: int = 0
    """Number of rows to propose."""
    priorities: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """float64[n]: for each of these, count the rows with larger priorities."""
    keys: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """int64[n]: keys of the rows to fetch."""


@dataclass
class Answer:
    """The answer to a question."""

    keys: NDArray[np.int64]
    """int64[draws]: keys of the proposed rows."""
    ranks: NDArray[np.int64]
    """int64[draws]: their ranks in the shard."""
    priorities: NDArray[np.float64]
    """float64[draws]: their priorities."""
    larger: NDArray[np.int64]
    """int64[n]: for each of the question's `priorities`, the number of rows with larger ones."""
    batch: Batch | None
    """The fetched rows."""
    state: replay_pb2.TableState
    """The state of the shard."""


@dataclass
class _Proposed:
    """Rows that one shard proposed in this round.

    `ranks` are ranks within the shard; `overall` are ranks in the whole table, complete after the count phase.
    """

    keys: NDArray[np.int64]
    ranks: NDArray[np.int64]
    priorities: NDArray[np.float64]
    overall: NDArray[np.int64]
    mass: float


@dataclass(eq=False)
class RankedStep(Step):
    """See the module."""

    alpha: float = 0.0
    random: np.random.Generator = field(default_factory=np.random.default_rng)
    phase: Phase = Phase.PROPOSE
    """What the step waits for. A round is running if any reply is due."""
    _open: dict[int, Question] = field(default_factory=dict)
    _drawable: dict[int, int] = field(default_factory=dict)
    _proposed: dict[int, _Proposed] = field(default_factory=dict)
    _accepted: dict[int, NDArray[np.float64]] = field(default_factory=dict)  # probabilities of the rows to fetch

    def __post_init__(self) -> None:
        self.places = self.random.permutation(self.draw.batch_size)[np.newaxis]

    @property
    def is_complete(self) -> bool:
        """Whether all rows have arrived."""
        return self.phase is Phase.COMPLETE

    @property
    def missing(self) -> int:
        """Number of rows that have not arrived."""
        return self.draw.batch_size - (self.parts[-1].rows.stop if self.parts else 0)

    def begin_round(self, chances: dict[int, float], states: dict[int, replay_pb2.TableState]) -> dict[int, Question]:
        """Begin another round, and return the questions of its first phase.

        Args:
            chances: probability of each shard, by id.
            states: the last state of each of these shards, by id.
        """
        self.chances = chances
        self.phase = Phase.PROPOSE
        self._proposed = {}
        self._drawable = {shard_id: states[shard_id].drawable for shard_id in chances}
        together = sum(states[shard_id].total_mass for shard_id in chances)
        acceptance = min(1.0, self._total() / together) if together > 0 else 1.0
        spread = math.sqrt(self.missing * (1.0 - acceptance))
        proposals = math.ceil((self.missing + _SPREADS * spread) / acceptance)
        counts = rows_by_shard(list(chances.values()), proposals, "independent", self.random)
        drawn = zip(chances, counts, strict=True)
        return self._ask({shard_id: Question(self, draws=count) for shard_id, count in drawn if count})

    def restart(self) -> None:
        """Discard all rows, and ignore the answers that are due."""
        self.phase = Phase.PROPOSE
        self.parts.clear()
        self.asked.clear()
        self._open.clear()

    def answered(self, shard_id: int, question: Question, answer: Answer) -> dict[int, Question]:
        """Process an answer. If it is the last one of its phase, return the questions of the next phase by shard."""
        if self._open.get(shard_id) is not question:
            return {}  # from before a restart
        del self._open[shard_id], self.asked[shard_id]
        self._drawable[shard_id] = answer.state.drawable
        if self.phase is Phase.PROPOSE:
            self._proposed[shard_id] = _Proposed(
                answer.keys, answer.ranks, answer.priorities, answer.ranks.copy(), answer.state.total_mass
            )
        elif self.phase is Phase.COUNT:
            self._count(shard_id, answer.larger)
        elif answer.batch is not None:
            self._fetched(shard_id, question.keys, answer.batch)
        return {} if self._open else self._next_phase()

    def probabilities(self, part: Part) -> NDArray[np.float64]:
        """Return the probabilities of a part's rows in the whole table, float64[n]."""
        return part.batch.probabilities

    def smallest_probability(self) -> float:
        """Return the probability of the last rank."""
        last = float(sum(self._drawable.values()))
        return max(math.pow(last, -self.alpha) / self._total(), _LEAST_PROBABILITY)

    def total_mass(self, states: Iterable[replay_pb2.TableState]) -> float:
        """Return the sum of j ** -alpha over all ranks."""
        return self._total()

    def _total(self) -> float:
        return power_sum(max(1, sum(self._drawable.values())), self.alpha)

    def _ask(self, questions: dict[int, Question]) -> dict[int, Question]:
        self._open = dict(questions)
        self.asked = dict.fromkeys(questions, 1)
        return questions

    def _next_phase(self) -> dict[int, Question]:
        if self.phase is Phase.PROPOSE:
            self.phase = Phase.COUNT
            questions = {shard_id: Question(self, priorities=self._to_count(shard_id)) for shard_id in self.chances}
            needed = {shard_id: each for shard_id, each in questions.items() if len(each.priorities)}
            if needed:
                return self._ask(needed)
        if self.phase is Phase.COUNT:
            self.phase = Phase.FETCH
            questions = self._accept()
            if questions:
                return self._ask(questions)
        self.phase = Phase.COMPLETE if self.missing == 0 else Phase.PROPOSE
        return {}

    def _others(self, shard_id: int) -> Sequence[tuple[int, _Proposed]]:
        """Return the proposals of the other shards, in the order in which `_to_count` lists them."""
        return [each for each in self._proposed.items() if each[0] != shard_id]

    def _to_count(self, shard_id: int) -> NDArray[np.float64]:
        """Return the priorities of the other shards' proposals, float64[n], to which this shard compares its rows."""
        # A shard with a smaller id also counts equal priorities, because they are larger than the next smaller float.
        parts = [
            np.nextafter(proposed.priorities, -np.inf) if shard_id < other else proposed.priorities
            for other, proposed in self._others(shard_id)
        ]
        return np.concatenate(parts) if parts else np.empty(0)

    def _count(self, shard_id: int, larger: NDArray[np.int64]) -> None:
        """Add a shard's counts of rows with larger priorities to the ranks of the other shards' proposals."""
        start = 0
        for _, proposed in self._others(shard_id):
            proposed.overall += larger[start : start + len(proposed.keys)]
            start += len(proposed.keys)

    def _accept(self) -> dict[int, Question]:
        """Accept proposals at random, at most as many as rows are missing. Return the questions that fetch them."""
        excess = {
            shard_id: self.chances[shard_id] / each.mass for shard_id, each in self._proposed.items() if each.mass
        }
        least = min(excess.values(), default=1.0)
        shards, places, probabilities = [], [], []
        for shard_id, proposed in self._proposed.items():
            chance = (proposed.ranks / proposed.overall) ** self.alpha * (least / excess.get(shard_id, least))
            accepted = np.flatnonzero(self.random.random(len(chance)) < chance)
            shards.append(np.full(len(accepted), shard_id))
            places.append(accepted)
            probabilities.append(proposed.overall[accepted] ** -self.alpha / self._total())
        order = self.random.permutation(sum(map(len, places)))[: self.missing]
        chosen, place = np.concatenate(shards)[order], np.concatenate(places)[order]
        probability = np.maximum(np.concatenate(probabilities)[order], _LEAST_PROBABILITY)
        questions = {}
        self._accepted = {}
        for shard_id in np.unique(chosen).tolist():
            mine = chosen == shard_id
            questions[shard_id] = Question(self, keys=self._proposed[shard_id].keys[place[mine]])
            self._accepted[shard_id] = probability[mine]
        return questions

    def _fetched(self, shard_id: int, keys: NDArray[np.int64], batch: Batch) -> None:
        """Add rows that have arrived. Rows that were overwritten since the proposal are left to the next round."""
        probabilities = self._accepted[shard_id]
        if batch.batch_size < len(keys):
            probabilities = probabilities[np.isin(keys, batch.row_keys)]
        start = self.draw.batch_size - self.missing
        self._add(shard_id, slice(start, start + batch.batch_size), replace(batch, probabilities=probabilities))
