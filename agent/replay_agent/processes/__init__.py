"""Child processes of a run, and signals that stop it."""
