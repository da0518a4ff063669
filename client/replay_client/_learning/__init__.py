"""Builds the requests of learners (draws and updates), and decodes the batches in the replies, without I/O."""
