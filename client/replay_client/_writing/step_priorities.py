"""Priorities that an actor gives to steps, until the windows of these steps are complete.

The priority of a transition is that of its first step. The priority of a sequence combines those of its steps from the
anchor on: ``eta * max + (1 - eta) * mean``, see `replay_proto.steps.Sequences.priority`.
"""

from __future__ import annotations

from replay_proto.steps import Item, Sequences


class StepPriorities:
    """The priorities of the current episode of each stream."""

    def __init__(self, streams: int, item: Item) -> None:
        """Begin without priorities."""
        self.are_used = False
        """Whether any step has ever got a priority."""
        self._given: list[dict[int, float]] = [{} for _ in range(streams)]
        self._length = item.length if isinstance(item, Sequences) else 1
        self._eta = item.eta if isinstance(item, Sequences) else 1.0

    def give(self, stream: int, step: int, priority: float) -> float | None:
        """Set the priority of a step, by its number in the episode. Return the earlier one, if any."""
        self.are_used = True
        before = self._given[stream].get(step)
        self._given[stream][step] = priority
        return before

    def take_back(self, stream: int, step: int, before: float | None) -> None:
        """Undo `give`, which returned ``before``."""
        if before is None:
            self._given[stream].pop(step, None)
        else:
            self._given[stream][step] = before

    def of_window(self, stream: int, anchor: int) -> float | None:
        """Return the priority of the window with this anchor; None if none of its steps has one."""
        given = self._given[stream]
        found = [given[step] for step in range(anchor, anchor + self._length) if step in given]
        return self._eta * max(found) + (1.0 - self._eta) * sum(found) / len(found) if found else None

    def forget(self, stream: int, before: int) -> None:
        """Forget the steps that belong to no window any more: those before a step."""
        given = self._given[stream]
        for step in [step for step in given if step < before]:
            del given[step]

    def clear(self, stream: int) -> None:
        """Forget all steps of a stream, at the end of its episode."""
        self._given[stream].clear()
