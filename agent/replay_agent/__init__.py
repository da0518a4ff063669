"""A Double DQN trainer that learns through the replay service."""
