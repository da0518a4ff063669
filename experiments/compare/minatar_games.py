"""Registers the games of MinAtar (Young and Tian, 2019, arXiv:1903.03176) with Gymnasium when it is imported.

    replay-train --env experiments.compare.minatar_games:MinAtar/Breakout-v1

Install the games with ``pip install minatar``. The package's own registration no longer works with Gymnasium.
"""

from __future__ import annotations

from minatar.gym import register_envs

register_envs()
