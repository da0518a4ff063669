"""The client with calls that wait, in threads; `replay_client` exports its classes."""
