"""What learners exchange with a server, without I/O: draws, updates, and the batches in replies."""
