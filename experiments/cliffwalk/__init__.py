"""The Blind Cliffwalk (Schaul et al. 2016, arXiv:1511.05952, section 3.1): `python -m experiments.cliffwalk`."""
