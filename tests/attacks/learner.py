"""Attacks on a learner's port, by strangers and by actors with write-only tokens."""

from __future__ import annotations

import json
import math
import time
from contextlib import suppress
from typing import Final

from replay_proto.v1 import learner_pb2

from tests.attacks.arena import Arena
from tests.attacks.attack import Attack, Setup, Target, call
from tests.attacks.learner_arena import LEARNER, LearnerArena
from tests.attacks.strangers import GzipBombs, RapidReset, RefusedCalls
from tests.support.access import WRITE
from tests.support.http2 import Http2

_LEAST_RATE: Final = 0.2
"""Minimum training speed during an attack, relative to normal. Attackers also use CPU time."""
_FORGED: Final = "mallory\n2027-01-01 00:00:00 ERROR forged\x1b[2J\x1b]0;title\x07"
_HARDLY_ANY_S: Final = 0.5
_LOOKS: Final = 6


class OnLearner(Attack):
    """Base class: training must continue during the attack."""

    setup = Setup(has_learner=True)
    longest_look_s = _LOOKS * _HARDLY_ANY_S
    """The speed is measured during the attack, for the first time when half of it is over."""

    def prepare(self, arena: Arena) -> None:
        assert isinstance(arena, LearnerArena)
        self.before = arena.alone_steps_per_s

    def meanwhile(self, arena: Arena) -> None:
        self.rate = self._fastest(arena, _LEAST_RATE * self.before)

    def check(self, arena: Arena) -> None:
        if self.rate > _LEAST_RATE * self.before:
            return
        after = self._fastest(arena, math.inf)  # other programs may have slowed the machine down since it was measured
        assert self.rate > _LEAST_RATE * after, (
            f"training: {self.rate:.0f} steps/s at most, {self.before:.0f} before the attack, {after:.0f} after it"
        )

    def _fastest(self, arena: Arena, enough: float) -> float:
        """Steps/s of the fastest of several looks, because it may evaluate, or write a checkpoint."""
        assert isinstance(arena, LearnerArena)
        rate = 0.0
        for _ in range(_LOOKS):
            rate = max(rate, arena.steps_per_s(_HARDLY_ANY_S))
            if rate > enough:
                break
        return rate


class HeldReports(OnLearner):
    """Starts calls without a token and never sends their bodies."""

    name = "learner: 64 calls that never send a body"
    calls = 64

    def act(self, target: Target) -> None:
        while target.goes_on():
            with suppress(OSError), Http2(target.connect_tls()) as link:
                calls = [link.begin(f"{LEARNER}/Report") for _ in range(self.calls)]
                while target.goes_on() and not all(map(link.has_ended, calls)):
                    link.read(0.1)


class LearnerBombs(OnLearner, GzipBombs):
    """Sends reports that decompress to a thousand times their size."""

    name = "learner: 6 gzip bombs of 1 MB on the wire each, repeatedly"
    method = f"{LEARNER}/Report"

    def prepare(self, arena: Arena) -> None:
        OnLearner.prepare(self, arena)
        GzipBombs.prepare(self, arena)


class LearnerReset(OnLearner, RapidReset):
    """Starts calls and resets each one immediately."""

    name = "learner: rapid reset on one connection"
    path = f"{LEARNER}/Report"


class LearnerRefusedCalls(OnLearner, RefusedCalls):
    """Makes as many calls without a token as the connection allows."""

    name = "learner: calls without a token, as many as one connection allows"
    path = f"{LEARNER}/Report"
    message = learner_pb2.ReportRequest(actor_id=1, run_id="x").SerializeToString()


class ForgedNames(OnLearner):
    """Joins with a name that contains a newline and escapes, to forge log lines and control the terminal."""

    name = "learner: an actor's name with a newline and escape sequences"

    def act(self, target: Target) -> None:
        with target.channel() as channel:
            while target.goes_on() and target.tries < 100:
                call(channel, f"{LEARNER}/Join", learner_pb2.JoinRequest(name=_FORGED), WRITE)

    def check(self, arena: Arena) -> None:
        super().check(arena)
        log = arena.server.log()
        assert "\x1b[2J" not in log, "escapes in the log"
        assert "\n2027-01-01" not in log, "a forged line in the log"


class ManyEpisodes(OnLearner):
    """Reports two million episodes in one message, with huge, infinite and NaN returns."""

    name = "learner: reports of 2 million episodes with returns of 1e300, inf and NaN"
    most_mb = 100.0
    returns = (1e300, math.inf, math.nan)

    def act(self, target: Target) -> None:
        with target.channel() as channel:
            joined = call(channel, f"{LEARNER}/Join", learner_pb2.JoinRequest(name="actor"), WRITE)
            run = learner_pb2.JoinResponse.FromString(joined.message)
            number = 2_000_000
            while target.goes_on():
                episodes = [
                    learner_pb2.FinishedEpisode(episode_return=self.returns[target.tries % 3], length=number % 2)
                ] * number
                report = learner_pb2.ReportRequest(actor_id=run.actor_id, run_id=run.run_id, episodes=episodes)
                call(channel, f"{LEARNER}/Report", report, WRITE, 30.0)
                number = max(1, number // 4)

    def check(self, arena: Arena) -> None:
        assert isinstance(arena, LearnerArena)
        time.sleep(_HARDLY_ANY_S)
        self.meanwhile(arena)  # it goes on training with these returns
        super().check(arena)
        for path in arena.run.rglob("*.json"):
            json.loads(path.read_text(), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


ATTACKS: Final[tuple[type[Attack], ...]] = (
    HeldReports,
    LearnerBombs,
    LearnerReset,
    LearnerRefusedCalls,
    ForgedNames,
    ManyEpisodes,
)
