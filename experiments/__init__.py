"""Experiments from the paper on prioritized replay (Schaul et al. 2016, arXiv:1511.05952), run through the service.

From the root of the repository, run `python -m experiments.cliffwalk` (section 3.1) or `python -m experiments.compare`
(learning curves with and without prioritization).
"""
