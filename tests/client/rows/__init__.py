"""Rows and batches, and the libraries that take them."""
