"""Runs attacks on servers next to a bystander, and reports the results."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tools.attacks import http_port, neighbours, small_rights, strangers
from tools.attacks.arena import Arena
from tools.attacks.attack import Attack, Target
from tools.attacks.bystander import Record
from tools.attacks.memory import MemoryWatch
from tools.attacks.processes import CONTEXT, keep_to_attackers_processors

GROUPS: dict[str, Sequence[type[Attack]]] = {
    "strangers": (*strangers.ATTACKS, *http_port.ATTACKS),
    "small rights": small_rights.ATTACKS,
    "neighbours": neighbours.ATTACKS,
}
"""Attacks by section of the document."""
ALLOWED_MS = 25.0
"""Allowed increase of the bystander's p99."""
_ROUNDS = 3
_PATIENCE_S = 10.0
"""Attackers that still run this long after their time are killed."""


@dataclass(frozen=True)
class Outcome:
    """Result of an attack."""

    attack: Attack
    alone: Record
    """The bystander's calls before the attack."""
    beside: Record
    """The bystander's calls during the attack."""
    rise_mb: float
    """Growth of the server's memory."""
    tries: int
    """Counts of the attackers."""
    logged_bytes: int
    """Growth of the server's log."""
    effects: tuple[str, ...]
    """Forbidden effects of the attack."""

    def faults(self, alone_p99_ms: float | None) -> Iterator[str]:
        """List the failures; without the bystander's baseline p99, latency is not checked."""
        yield from self.effects
        if self.beside.errors:
            yield f"errors for the bystander: {dict(self.beside.errors)}"
        if self.rise_mb > self.attack.most_mb:
            yield f"{self.rise_mb:.0f} MB of memory, {self.attack.most_mb:.0f} at most"
        if self.logged_bytes > self.attack.most_log_bytes:
            yield f"{self.logged_bytes} bytes of log, {self.attack.most_log_bytes} at most"
        if alone_p99_ms is not None and self.beside.p99_ms > alone_p99_ms + ALLOWED_MS:
            yield f"p99 {self.beside.p99_ms:.1f} ms, alone {alone_p99_ms:.1f} ms"

    def line(self) -> tuple[str, ...]:
        """Row of the table of results."""
        return line_of(self.attack.name, self.beside, self.rise_mb)


HEADS = ("attack", "p99, ms", "worst, ms", "errors", "memory, MB")


def line_of(name: str, record: Record, rise_mb: float) -> tuple[str, ...]:
    """A row of a table with the columns `HEADS`."""
    waits = (f"{record.p99_ms:.1f}", f"{record.worst_ms:.0f}") if record.waits_ms else ("", "")
    return name, *waits, str(record.errors.total()), f"{max(0.0, rise_mb):.0f}"


def carry_out(attack: Attack, arena: Arena, seconds: float, alone_s: float = 0.0) -> Outcome:
    """Attack a server for at least this long, after a phase with only the bystander."""
    effects: list[str] = []
    attack.prepare(arena)
    arena.bystander.take()
    time.sleep(alone_s)
    alone = arena.bystander.take()
    logged_before = len(arena.server.log())
    seconds = max(seconds, attack.least_s)
    target = arena.target()
    target.lasts_s = seconds + attack.longest_look_s
    with MemoryWatch(arena.server.pid) as memory:
        attackers = [_Attacker(attack, target) for _ in range(attack.processes)]
        for attacker in attackers:
            attacker.wait_until_it_begins()
        began = time.monotonic()
        time.sleep(seconds / 2)
        _note(effects, lambda: attack.meanwhile(arena))
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        for attacker in attackers:
            attacker.stop()
        ends = [attacker.end() for attacker in attackers]
    beside = arena.bystander.take()
    _note(effects, lambda: attack.check(arena))
    tries = sum(end.tries for end in ends)
    if not tries:
        effects.append("nothing was tried")
    if arena.server.process.poll() is not None:
        effects.append("the server has ended")
    logged = len(arena.server.log()) - logged_before
    found = [what for end in ends for what in end.found]
    return Outcome(attack, alone, beside, memory.rise_mb, tries, logged, (*effects, *dict.fromkeys(found)))


def _note(effects: list[str], look: object) -> None:
    assert callable(look)
    try:
        look()
    except Exception:
        effects.append(traceback.format_exc(limit=-2))


class _Attacker:
    """A process that attacks."""

    def __init__(self, attack: Attack, target: Target) -> None:
        self._target = target
        self._pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_act, args=(attack, target, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def wait_until_it_begins(self) -> None:
        """Wait until its process has started to attack."""
        assert self._pipe.poll(_PATIENCE_S), "an attacker did not begin"
        self._target = self._pipe.recv()

    def stop(self) -> None:
        """Ask it to stop now, even if its time was extended."""
        with suppress(OSError):  # it has ended
            self._pipe.send("stop")

    def end(self) -> Target:
        """Wait for its end and return its record."""
        end = self._target
        try:
            if self._pipe.poll(self._target.left_s + _PATIENCE_S):
                end = self._pipe.recv()
            else:
                end.found.append("an attacker did not come to its end")
        except EOFError:
            end.found.append("an attacker was killed")
        self._process.kill()
        self._process.join()
        return end


def _act(attack: Attack, target: Target, pipe: Connection) -> None:
    keep_to_attackers_processors()
    target.until = time.monotonic() + target.lasts_s
    pipe.send(target)
    threading.Thread(target=_end_when_asked, args=(target, pipe), daemon=True).start()
    try:
        attack.act(target)
    except Exception:
        target.found.append(f"an attacker failed: {traceback.format_exc(limit=-4)}")
    pipe.send(target)


def _end_when_asked(target: Target, pipe: Connection) -> None:
    with suppress(EOFError, OSError):
        pipe.recv()
        target.until = min(target.until, time.monotonic())


def in_an_arena_of_its_own(kind: type[Attack], seconds: float, alone_s: float) -> Outcome:
    """Run an attack on a new server."""
    arena = Arena(kind.setup)
    try:
        outcome = carry_out(kind(), arena, seconds, alone_s)
    finally:
        arena.close()
    return outcome


def best_round(kind: type[Attack], seconds: float, alone_s: float) -> Outcome:
    """Run an attack, repeating it if the bystander was slow; return the round with the shortest waits."""
    rounds: list[Outcome] = []
    while len(rounds) < _ROUNDS:
        rounds.append(in_an_arena_of_its_own(kind, seconds, alone_s))
        if [*rounds[-1].faults(None)] or not [*rounds[-1].faults(rounds[-1].alone.p99_ms)]:
            return rounds[-1]
    return min(rounds, key=lambda outcome: outcome.beside.p99_ms)
