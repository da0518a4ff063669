"""Tables: creation, concurrency and a model of what they do."""
