"""A learner's stream to one shard of a table that is drawn by rank. A message may have questions of several steps."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from replay_proto.v1 import replay_pb2

from replay_client._shards.ranked_step import Answer, Question
from replay_client._shards.step import Step
from replay_client.batch import Batch
from replay_client.sync.shards.drawing.shard_stream import ShardStream


class RankedStream(ShardStream):
    """See the module. For use in one thread."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._questions: list[Question] = []  # to be sent with the next message

    @property
    def next_is_batch(self) -> bool:
        """Whether the next reply answers questions."""
        pending = self._learning.pending.requests
        return bool(pending) and bool(pending[0].asked_for)

    @property
    def has_kept(self) -> bool:
        """Whether updates or questions wait for the next request."""
        return super().has_kept or bool(self._questions)

    def has_unsent(self, step: Step) -> bool:
        """Whether a question of this step waits for the next message."""
        return any(question.step is step for question in self._questions)

    def put(self, question: Question) -> None:
        """Add a question to the next message.

        A message can fetch rows for only one question. If this is the second one, the waiting questions are sent first.
        """
        if len(question.keys) and any(len(other.keys) for other in self._questions):
            self.ask_for(None)
        self._questions.append(question)

    def ask_for(self, draw: replay_pb2.Draw | None, step: Step | None = None) -> None:
        """Send kept updates, waiting questions, and a request for the shard's state; ignores ``draw`` and ``step``."""
        questions, self._questions = self._questions, []
        query = None
        if any(not len(question.keys) for question in questions):
            priorities = np.concatenate([question.priorities for question in questions])
            query = replay_pb2.RankQuery(
                draws=sum(question.draws for question in questions), priorities=priorities.tobytes()
            )
        fetch = next((_fetch(question) for question in questions if len(question.keys)), None)
        self._learning.ask_for(fetch, query, asked_for=questions)
        self._stream.send_pending()

    def take_answers(self, deadline: float = math.inf) -> list[tuple[Question, Answer]]:
        """Wait for the next reply, and return its answers, each with its question.

        Raises:
            ServerUnavailableError: the server is unreachable.
            ReplayError: the server refused the request.
        """
        exchange, content = self._stream.receive(deadline)
        head = self._learning.answered(exchange, content)
        self.state_at = time.monotonic()
        batch = self._learning.batches.popleft() if exchange.batches else None
        if isinstance(batch, replay_pb2.Draw):
            batch = self._draw_over_wire(batch)
        return _answers(exchange.asked_for, head, batch)


def _fetch(question: Question) -> replay_pb2.Draw:
    draw = replay_pb2.Draw()
    draw.CopyFrom(question.step.draw)
    draw.batch_size, draw.keys = len(question.keys), question.keys.tobytes()
    draw.wait_s, draw.beta = 0.0, 0.0
    return draw


def _answers(
    questions: Sequence[Question], head: replay_pb2.LearnResponse, batch: Batch | None
) -> list[tuple[Question, Answer]]:
    """Divide a reply among the questions of its message."""
    keys, ranks = np.frombuffer(head.ranks.keys, "<i8"), np.frombuffer(head.ranks.ranks, "<i8")
    priorities, larger = np.frombuffer(head.ranks.priorities, "<f8"), np.frombuffer(head.ranks.larger, "<i8")
    answers = []
    drawn, counted = 0, 0
    for question in questions:
        draws = slice(drawn, drawn + question.draws)
        counts = slice(counted, counted + len(question.priorities))
        drawn, counted = draws.stop, counts.stop
        of_fetch = batch if len(question.keys) else None
        answer = Answer(keys[draws], ranks[draws], priorities[draws], larger[counts], of_fetch, head.state)
        answers.append((question, answer))
    return answers
