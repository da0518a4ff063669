"""Tables: creation, concurrency and a model of their behavior."""
