"""The client for threads, whose calls block; `replay_client` exports its classes."""
