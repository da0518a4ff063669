"""Draws batches by rank from a distributed table by exact rejection sampling; see `replay_client._shards.ranked_step`.

Each batch takes three round trips to the shards. Each message to a shard carries questions of several batches in
flight, some of which are ahead of others. So with a prefetch of 4 or more, each `next()` sends one message to each
shard, and does not wait for the replies to these messages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from replay_client._shards.ranked_step import Phase, Question, RankedStep
from replay_client._shards.step import Step
from replay_client.sync.shards.drawing.ranked_stream import RankedStream
from replay_client.sync.shards.drawing.sharded_sampler import GONE, ShardedSampler


class RankedSampler(ShardedSampler):
    """See the module, and `Sampler`. For use in one thread."""

    def __init__(self, *arguments: Any, alpha: float, **options: Any) -> None:
        """See `ShardedSampler`. ``alpha`` is the exponent of the ranks; ``open_stream`` opens a `RankedStream`."""
        self._alpha = alpha
        super().__init__(*arguments, **options)

    def _request(self) -> None:
        self._check_usable()
        self._distribute()
        third = max(1, math.ceil((self.prefetch - 1) / 3))
        for number, step in enumerate(list(self._steps)):
            assert isinstance(step, RankedStep)
            age = len(self._steps) - number
            while step.phase < min(age // third, Phase.FETCH):
                self._pursue(step)
        super()._request()

    def _pursue(self, step: Step) -> None:
        """Wait for one reply to a step's questions. If no question is unanswered, begin the step's next round first."""
        assert isinstance(step, RankedStep)
        if not step.asked:
            self._begin_round(step)
        shard_id = next(iter(step.asked))
        if self._of(shard_id).has_unsent(step):  # not earlier, so that questions of several steps share a message
            self._ask_idle()
        self._receive_from(shard_id)

    def _together(self) -> int:
        return 1

    def _begin_step(self, batches: int) -> None:
        columns = self._buffers.blank(self._draw.batch_size)
        step = RankedStep(self._draw, {}, {}, columns, alpha=self._alpha, random=self._random)
        self._begin_round(step)
        self._steps.append(step)

    def _begin_round(self, step: RankedStep) -> None:
        chances = self._drawable_chances()
        self._put(step.begin_round(chances, {shard_id: self._streams[shard_id].state for shard_id in chances}))

    def _put(self, questions: Mapping[int, Question]) -> None:
        for shard_id, question in questions.items():
            self._of(shard_id).put(question)

    def _receive_from(self, shard_id: int, deadline: float = math.inf) -> None:
        """Process the next reply of a shard."""
        try:
            answers = self._of(shard_id).take_answers(deadline)
        except GONE as error:
            self._lose(self._members[shard_id], error)
            return
        self._roster.heard(self._streams[shard_id].state.shards_version)
        for question, answer in answers:
            self._put(question.step.answered(shard_id, question, answer))

    def _redraw(self, step: Step, shard_id: int) -> None:
        """Restart an incomplete step without this shard, because the loss of the shard changes all ranks."""
        assert isinstance(step, RankedStep)
        if not step.is_complete:
            step.restart()

    def _of(self, shard_id: int) -> RankedStream:
        stream = self._streams[shard_id]
        assert isinstance(stream, RankedStream)
        return stream
