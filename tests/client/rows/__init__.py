"""Rows and batches, and the libraries that use them."""
