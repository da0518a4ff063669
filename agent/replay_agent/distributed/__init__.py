"""Acting for a learner from other processes and machines."""
