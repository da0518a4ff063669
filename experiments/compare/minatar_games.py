"""The games of MinAtar (Young and Tian, 2019, arXiv:1903.03176), made known to Gymnasium by importing this module.

    replay-train --env experiments.compare.minatar_games:MinAtar/Breakout-v1

They come with ``pip install minatar``, which says where to find them in a way that Gymnasium no longer reads.
"""

from __future__ import annotations

from minatar.gym import register_envs

register_envs()
