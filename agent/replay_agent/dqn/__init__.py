"""Double DQN and what it learns from: networks, n-step transitions, losses, gradient steps."""
