"""A training run, from its settings to its result."""
