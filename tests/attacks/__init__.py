"""Short runs of the attacks in `tools.attacks`."""
