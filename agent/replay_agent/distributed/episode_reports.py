"""Validates actors' reports and puts them into a bounded queue for the trainer."""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import Final

from replay_proto.errors import FieldError
from replay_proto.v1 import learner_pb2

from replay_agent.acting.actor import FinishedEpisode
from replay_agent.dqn.divergence import MAX_RETURN

MAX_EPISODES: Final = 1_000
"""Maximum episodes per report; actors split longer lists."""
MAX_REPORT_BYTES: Final = 1 << 16
"""Maximum size of a report. `MAX_EPISODES` episodes take a third of it. Parsing a report of this size takes 4 ms."""
MAX_LENGTH: Final = 2**53
"""Maximum environment steps of an episode: the largest integer that float64, and thus JSON, represents exactly."""
MAX_QUEUED: Final = 100_000
"""Maximum episodes queued for the trainer, about 20 MB. A thousand actors need a minute to fill the queue."""


class Reports:
    """A queue of the episodes that actors reported, oldest first. Thread-safe."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        """Set by each report; the waiting thread clears it."""
        self._lock = threading.Lock()
        self._queue: deque[FinishedEpisode] = deque()
        self.dropped = 0
        """Episodes dropped so far because the queue was full."""

    def add(self, request: learner_pb2.ReportRequest, actors_joined: int) -> None:
        """Queue the episodes of a report; if the queue is full, the oldest are dropped.

        Args:
            request: an actor's report.
            actors_joined: number of actors that have joined; larger actor ids are invalid.

        Raises:
            FieldError: a field is invalid; nothing was queued.
        """
        episodes = _checked(request, actors_joined)
        with self._lock:
            self._queue.extend(episodes)
            while len(self._queue) > MAX_QUEUED:
                self._queue.popleft()
                self.dropped += 1
        self.arrived.set()

    def take_episodes(self, limit: int = MAX_QUEUED) -> list[FinishedEpisode]:
        """Remove and return the oldest episodes, at most ``limit``; set `arrived` if more are left."""
        with self._lock:
            taken = [self._queue.popleft() for _ in range(min(limit, len(self._queue)))]
            if taken and self._queue:
                self.arrived.set()
        return taken


def _checked(request: learner_pb2.ReportRequest, actors_joined: int) -> list[FinishedEpisode]:
    """Validate a report and return its episodes."""
    if not 1 <= request.actor_id <= actors_joined:
        raise FieldError("actor_id", "the number that Join gave", str(request.actor_id))
    if len(request.episodes) > MAX_EPISODES:
        got = f"{len(request.episodes)}; send them in several reports"
        raise FieldError("episodes", f"at most {MAX_EPISODES}", got)
    for index, episode in enumerate(request.episodes):
        # The negation catches NaN.
        if not math.fabs(episode.episode_return) <= MAX_RETURN:
            raise FieldError(
                f"episodes[{index}].episode_return",
                f"a finite number from {-MAX_RETURN:g} to {MAX_RETURN:g}",
                f"{episode.episode_return}; scale the environment's rewards down",
            )
        if not 1 <= episode.length <= MAX_LENGTH:
            raise FieldError(f"episodes[{index}].length", f"1 to {MAX_LENGTH} environment steps", str(episode.length))
    return [FinishedEpisode(episode.episode_return, episode.length, request.actor_id) for episode in request.episodes]
