"""R2D2: a recurrent Double DQN that learns from sequences (Kapturowski et al., 2019)."""
