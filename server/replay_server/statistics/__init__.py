"""Figures that are kept as things happen, so that nobody has to pass over all rows to answer a question."""
