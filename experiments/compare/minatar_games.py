"""The games of MinAtar (Young and Tian, 2019, arXiv:1903.03176), registered with Gymnasium by importing this module.

    replay-train --env experiments.compare.minatar_games:MinAtar/Breakout-v1

They come with ``pip install minatar``, whose own registration no longer works with Gymnasium.
"""

from __future__ import annotations

from minatar.gym import register_envs

register_envs()
