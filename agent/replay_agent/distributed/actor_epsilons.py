"""Assigns the epsilons of a run to its actors."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


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
