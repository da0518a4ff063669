"""Experiments of the paper on prioritized replay (Schaul et al. 2016, arXiv:1511.05952), run through the service.

The command is `replay-experiment`: ``replay-experiment cliffwalk`` (section 3.1) and ``replay-experiment compare``
(learning curves with and without prioritization).
"""
