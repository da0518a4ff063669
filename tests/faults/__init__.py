"""Short runs of the programs in `tools.faults`, and tests of single faults."""
