"""What the learner's service keeps of its actors: their epsilons, who joins, and reports of their episodes."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from replay_proto.errors import FieldError
from replay_proto.v1 import learner_pb2

from replay_agent.acting.actor import FinishedEpisode
from replay_agent.dqn.divergence import MAX_RETURN


class ActorEpsilons:
    """Gives each actor one of a few constant epsilons. Thread-safe.

    The holder of an epsilon is the actor that got it last. An actor that joins under the name of a holder gets the
    holder's epsilon: it is probably the same actor, which has restarted or missed the reply to its first Join.

    Any other actor gets an epsilon without a holder. If every epsilon has one, the actor takes over the epsilon of the
    holder that has been silent longest. Normally, that holder has ended. If there are more actors than epsilons, it may
    still be running; both actors then use the same epsilon.
    """

    def __init__(self, epsilons: Sequence[float], clock: Callable[[], float] = time.monotonic) -> None:
        """Assign ``epsilons`` (at least one) in this order; ``clock`` returns seconds."""
        self._places = [_Place(epsilon) for epsilon in epsilons]
        self._held: dict[int, _Place] = {}
        self._clock = clock
        self._lock = threading.Lock()

    def assign(self, actor_id: int, name: str) -> float:
        """Return the epsilon of an actor that joins."""
        with self._lock:
            same = [place for place in self._places if name and place.name == name]
            place = same[0] if same else min(self._places, key=lambda place: place.heard_s)
            self._held.pop(place.actor_id, None)
            self._held[actor_id] = place
            place.actor_id, place.name, place.heard_s = actor_id, name, self._clock()
            return place.epsilon

    def hear(self, actor_id: int) -> None:
        """Record that an actor is alive."""
        with self._lock:
            if actor_id in self._held:
                self._held[actor_id].heard_s = self._clock()


@dataclass
class _Place:
    """An epsilon and its holder."""

    epsilon: float
    actor_id: int = 0
    name: str = ""
    heard_s: float = -math.inf


log = logging.getLogger(__name__)

MAX_NAME_LENGTH: Final = 256
LINES_PER_S: Final = 20


class JoinLog:
    """Logs up to `LINES_PER_S` actors per second, and counts the others. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._second = -1
        self._lines = 0
        self._left_out = 0

    def note(self, actor_id: int, name: str) -> None:
        """Log an actor. Its name is untrusted and therefore escaped."""
        with self._lock:
            second = int(self._clock())
            if second != self._second:
                self._second, self._lines = second, 0
            self._lines += 1
            if self._lines > LINES_PER_S:
                self._left_out += 1
                return
            left_out, self._left_out = self._left_out, 0
        others = f", after {left_out} others" if left_out else ""
        log.info("actor %d joined: %r%s", actor_id, name[:MAX_NAME_LENGTH], others)


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
