"""Learning curves with and without prioritization: `python -m experiments.compare`."""
