"""How Atari games are played."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class AtariOptions:
    """How Atari games are played; other environments ignore it.

    Attributes:
        sticky_actions: probability that the emulator repeats the last action in a frame (Machado et al., 2018,
            arXiv:1709.06009, section 5).
        noop_max: maximum number of random frames without an action at the beginning of a game (Mnih et al., 2015).
        episodic_life: whether a lost life ends an episode. The next one is a new game, as with
            ``terminal_on_life_loss`` of Gymnasium's `AtariPreprocessing`.
    """

    sticky_actions: float = 0.25
    noop_max: int = 0
    episodic_life: bool = False

    def in_evaluation(self) -> AtariOptions:
        """Return the options for whole games."""
        return replace(self, episodic_life=False)
